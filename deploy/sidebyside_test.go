package deploy_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/archkeeper/archkeeper/controllers/admission"
	"github.com/archkeeper/archkeeper/controllers/certificates"
	"github.com/archkeeper/archkeeper/controllers/config"
	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/wire"
	"github.com/archkeeper/archkeeper/rego"
)

var update = flag.Bool("update-wire", false, "record anew what versions say to each other: a decision, not a repair")

// recorded compares what this version writes with what was recorded, which
// another version reads beside it during an upgrade, or after a rollback: see
// docs/upgrade.md.
func recorded(t *testing.T, name, written string) string {
	t.Helper()
	file := filepath.Join("testdata", "wire-1", name)
	if *update {
		if err := os.WriteFile(file, []byte(written), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != written {
		t.Errorf("%s: this version writes\n%s\nand the one beside it reads\n%s", file, written, text)
	}
	return string(text)
}

func TestTheStructuredKeyIsTheOneThatOthersRead(t *testing.T) {
	key := wire.Key{Image: "registry.example/shop/web:1", ImagePullSecrets: []string{"a", "b"}, Namespace: "shop", ServiceAccount: "default", V: 1}
	got, err := wire.ParseKey(recorded(t, "key.json", key.String()))
	if err != nil || !reflect.DeepEqual(got, key) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAnswersAreThoseThatOthersRead(t *testing.T) {
	answer := provider.Answer{
		Digest: "sha256:" + strings.Repeat("ab", 32), Kind: provider.KindIndex,
		Platforms: []string{"linux/amd64", "linux/arm/v7"}, Architectures: []string{"amd64", "arm"},
	}
	value, err := json.Marshal(wire.ValueFromAnswer(answer))
	if err != nil {
		t.Fatal(err)
	}
	read, err := wire.ParseValue("i", []byte(recorded(t, "value.json", string(value))))
	if err != nil || read.Digest != answer.Digest || !reflect.DeepEqual(read.Architectures, answer.Architectures) || !reflect.DeepEqual(read.Platforms, answer.Platforms) {
		t.Errorf("%+v, %v", read, err)
	}

	system := wire.EncodeSystemError([]wire.Undetermined{{Key: "i", Class: provider.ClassRateLimited, Message: "slowly"}})
	undetermined, err := wire.ParseSystemError(recorded(t, "systemerror.json", system))
	if err != nil || len(undetermined.Undetermined) != 1 || undetermined.Undetermined[0].Class != provider.ClassRateLimited {
		t.Errorf("%+v, %v", undetermined, err)
	}
	// A version that knows a further field is understood.
	if _, err := wire.ParseValue("i", []byte(strings.TrimSuffix(string(value), "}")+`,"later":1}`)); err != nil {
		t.Errorf("a value with a further field: %v", err)
	}
}

// The classes stand in answers, in metrics and in people's constraints.
func TestErrorClassesAreThoseThatOthersKnow(t *testing.T) {
	var all []string
	for _, class := range provider.Classes() {
		all = append(all, string(class))
		if got := wire.ParseItemError(string(class) + ": why"); got.Class != class {
			t.Errorf("item error of class %s is read as %s", class, got.Class)
		}
	}
	recorded(t, "classes.txt", strings.Join(all, "\n")+"\n")
}

// A Configuration of today stays one.
func TestTheConfigurationOfTodayIsRead(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "wire-1", "configuration.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := config.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if p := got.Placement; p.Gate != "archkeeper.io/architecture" || p.Mode != config.ModeEnforce || len(p.Preferred) != 1 || !p.Pin || time.Duration(p.HoldDeadline) != 2*time.Minute {
		t.Errorf("%+v", p)
	}
}

// Names by which one version finds what another has made.
func TestNamesAreThoseThatOthersLookFor(t *testing.T) {
	recorded(t, "names.txt", strings.Join([]string{
		"apiVersion " + config.APIVersion,
		"gate " + rego.DefaultGate,
		"opt-out " + rego.OptOutLabel,
		"decided " + admission.DecidedLabel,
		"rotate " + certificates.RotateAnnotation,
		"mode " + config.AnnotationMode,
		"hold-deadline " + config.AnnotationHoldDeadline,
		"fallback-architecture " + config.AnnotationFallbackArchitecture,
		"user-architecture " + config.AnnotationUserArchitecture,
	}, "\n")+"\n")
}
