package cache

import (
	"encoding/hex"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/archkeeper/archkeeper/provider"
)

var update = flag.Bool("update-format", false, "record the format anew: only together with another storeFormat and sharedPrefix")

// What is recorded here is on disks and in shared caches that another version
// reads, beside this one or after a rollback. A change of it needs another
// storeFormat, by which an older version sets the file aside, and another
// sharedPrefix, under which it does not look.
func TestTheFormatIsTheOneThatOthersRead(t *testing.T) {
	const file = "testdata/format-1.txt"
	key, at := KeyOf("registry.example", "shop/web:1"), time.Unix(1_700_000_000, 0)
	facts := &Facts{
		Digest: "sha256:" + strings.Repeat("ab", 32), Kind: provider.KindIndex, Platforms: []string{"linux/amd64", "linux/arm64"},
		Architectures: []string{"amd64", "arm64"}, Public: true, Warnings: []string{"a warning"},
	}
	failed := &Facts{Digest: facts.Digest, Kind: provider.KindArtifact, Architectures: []string{}, Err: provider.Errorf(provider.ClassNotRunnable, "a signature")}
	content := &Facts{Digest: facts.Digest, Kind: provider.KindManifest, Architectures: []string{}, ContentOnly: true}
	tag := tagEntry{checked: at.UnixMilli(), facts: key, candidate: 1, credential: -1, public: true}
	room := make([]byte, checksumSize)
	written := []struct {
		name   string
		record []byte
	}{
		{"format", []byte{storeFormat}},
		{"key", key[:]},
		{"shared-key", []byte(sharedKey(recordTag, key))},
		{"tag", seal(key[:], appendTag(append([]byte{}, room...), tag))},
		{"facts", seal(key[:], appendFacts(append([]byte{}, room...), facts, at))},
		{"facts-failed", seal(key[:], appendFacts(append([]byte{}, room...), failed, at))},
		{"facts-content", seal(key[:], appendFacts(append([]byte{}, room...), content, at))},
		{"hint", seal(key[:], appendTime(append([]byte{}, room...), at))},
	}
	var now strings.Builder
	for _, w := range written {
		now.WriteString(w.name + " " + hex.EncodeToString(w.record) + "\n")
	}
	if *update {
		if err := os.WriteFile(file, []byte(now.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	recorded, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(recorded) != now.String() {
		t.Errorf("this is written:\n%sand others read:\n%s", &now, recorded)
	}

	// And what others have written is read.
	read := map[string][]byte{}
	for line := range strings.Lines(string(recorded)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if read[name], err = hex.DecodeString(text); err != nil {
			t.Fatal(err)
		}
	}
	payload := func(name string) []byte {
		t.Helper()
		p, err := unseal(key[:], read[name])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return p
	}
	if got, err := readTag(payload("tag")); err != nil || got != tag {
		t.Errorf("tag %+v, %v", got, err)
	}
	for name, want := range map[string]*Facts{"facts": facts, "facts-failed": failed, "facts-content": content} {
		got, err := readFacts(payload(name), &shapes{known: map[string]uint16{}})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got.Digest != want.Digest || got.Kind != want.Kind || got.Public != want.Public || got.ContentOnly != want.ContentOnly ||
			!reflect.DeepEqual(got.Platforms, want.Platforms) || !reflect.DeepEqual(got.Architectures, want.Architectures) ||
			!reflect.DeepEqual(got.Warnings, want.Warnings) || (got.Err == nil) != (want.Err == nil) || got.Err != nil && got.Err.Class != want.Err.Class {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}
