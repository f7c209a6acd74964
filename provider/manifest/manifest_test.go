package manifest_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/manifest"
)

const (
	sum  = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	sum5 = "sha512:cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e"
)

// entry is an index entry with a platform, given as the JSON of its fields.
func entry(platform string) string {
	return `{"mediaType":"` + manifest.OCIManifest + `","digest":"` + sum + `","size":1,"platform":{` + platform + `}}`
}

func index(entries ...string) string {
	return `{"schemaVersion":2,"mediaType":"` + manifest.OCIIndex + `","manifests":[` + strings.Join(entries, ",") + `]}`
}

func image(configType string) string {
	return `{"schemaVersion":2,"config":{"mediaType":"` + configType + `","digest":"` + sum + `","size":2},"layers":[]}`
}

const (
	linuxAMD64  = `"os":"linux","architecture":"amd64"`
	linuxARM64  = `"os":"linux","architecture":"arm64","variant":"v8"`
	attestation = `{"mediaType":"` + manifest.OCIManifest + `","digest":"` + sum + `","size":1,"platform":{"architecture":"unknown","os":"unknown"},` +
		`"annotations":{"vnd.docker.reference.type":"attestation-manifest","vnd.docker.reference.digest":"` + sum + `"}}`
	bare = `{"mediaType":"` + manifest.OCIManifest + `","digest":"` + sum + `","size":1}`
)

// what is what Parse came to, in one comparable line.
type what struct {
	kind      provider.Kind
	mediaType string
	platforms string // between spaces
	config    bool
	children  int
	class     provider.Class // empty without an error
	warns     string         // a part of the warnings, or empty for none
}

func TestParse(t *testing.T) {
	index2 := what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, platforms: "linux/amd64 linux/arm64"}
	for sentence, row := range map[string]struct {
		contentType, body string
		want              what
	}{
		"an index, sorted and normalised":                    {manifest.OCIIndex, index(entry(linuxARM64), entry(linuxAMD64), entry(linuxAMD64)), index2},
		"a content type with a parameter":                    {manifest.OCIIndex + "; charset=utf-8", index(entry(linuxARM64), entry(linuxAMD64)), index2},
		"a content type in the wrong case":                   {strings.ToUpper(manifest.OCIIndex), index(entry(linuxARM64), entry(linuxAMD64)), index2},
		"a content type that is missing":                     {"", index(entry(linuxARM64), entry(linuxAMD64)), index2},
		"a content type that says nothing":                   {"application/octet-stream", index(entry(linuxARM64), entry(linuxAMD64)), index2},
		"a content type that cannot be read":                 {";;;=", index(entry(linuxARM64), entry(linuxAMD64)), index2},
		"a content type that lies":                           {manifest.OCIManifest, index(entry(linuxARM64), entry(linuxAMD64)), with(index2, func(w *what) { w.warns = "serves content type" })},
		"a body that lies about its type: its shape decides": {"", strings.Replace(index(entry(linuxARM64), entry(linuxAMD64)), manifest.OCIIndex, manifest.OCIManifest, 1), index2},
		"an index without mediaType":                         {"", `{"manifests":[` + entry(linuxAMD64) + `]}`, what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, platforms: "linux/amd64"}},
		"a Docker list by its content type":                  {manifest.DockerList, `{"manifests":[` + entry(linuxAMD64) + `]}`, what{kind: provider.KindIndex, mediaType: manifest.DockerList, platforms: "linux/amd64"}},
		"attestations are no platforms":                      {"", index(entry(linuxAMD64), attestation), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, platforms: "linux/amd64"}},
		"attestations alone are not runnable":                {"", index(attestation, attestation), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, class: provider.ClassNotRunnable}},
		"an attestation that lies about its platform":        {"", index(entry(linuxAMD64), strings.ReplaceAll(attestation, "unknown", "arm64")), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, platforms: "linux/amd64"}},
		"no entries are not runnable":                        {"", index(), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, class: provider.ClassNotRunnable}},
		"null entries are not runnable":                      {"", `{"mediaType":"` + manifest.OCIIndex + `","manifests":null}`, what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, class: provider.ClassNotRunnable}},
		"an entry without a platform is to be read":          {"", index(entry(linuxAMD64), bare), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, platforms: "linux/amd64", children: 1}},
		"an empty platform is none":                          {"", index(entry("")), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, children: 1}},
		"an architecture without an os is to be read":        {"", index(entry(`"architecture":"arm64"`)), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, children: 1}},
		"an index in an index counts as its platform":        {"", index(strings.Replace(entry(linuxAMD64), manifest.OCIManifest, manifest.OCIIndex, 1)), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, platforms: "linux/amd64"}},
		"windows with versions":                              {"", index(entry(`"os":"windows","os.version":"10.0.17763.1","architecture":"amd64"`), entry(`"os":"windows","os.version":"10.0.20348.2","architecture":"amd64","os.features":["win32k"]`)), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, platforms: "windows(10.0.17763.1)/amd64 windows(10.0.20348.2)/amd64"}},
		"arm variants are kept apart":                        {"", index(entry(`"os":"linux","architecture":"arm"`), entry(`"os":"linux","architecture":"arm","variant":"v6"`)), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, platforms: "linux/arm/v6 linux/arm/v7"}},
		"a hostile platform beside a good one":               {"", index(entry(`"os":"linux","architecture":"amd64\u001b[31m"`), entry(linuxAMD64)), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, platforms: "linux/amd64", warns: `1 of the index's entries have no valid platform and are left out; the first: the platform's architecture is "amd64\x1b[31m"`}},
		"hostile platforms alone":                            {"", index(entry(`"os":"linux","architecture":"` + strings.Repeat("a", 1<<20) + `"`)), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, class: provider.ClassInvalidContent, warns: "no valid platform"}},
		"entries that say they are artifacts":                {"", index(entry(linuxAMD64), `{"mediaType":"`+manifest.OCIManifest+`","artifactType":"application/vnd.dev.cosign.artifact.sig.v1+json","digest":"`+sum+`","size":1}`), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, platforms: "linux/amd64"}},
		"an entry whose artifact type is an image config":    {"", index(strings.Replace(entry(linuxAMD64), `"size"`, `"artifactType":"`+manifest.OCIConfig+`","size"`, 1)), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, platforms: "linux/amd64"}},
		"entries that are no manifests":                      {"", index(entry(linuxAMD64), `{"mediaType":"application/vnd.cyclonedx+json","digest":"`+sum+`","size":1}`), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, platforms: "linux/amd64", warns: `"application/vnd.cyclonedx+json"`}},
		"an entry to be read with a digest that is none":     {"", index(strings.Replace(bare, sum, "sha256:../../x", 1)), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, class: provider.ClassInvalidContent}},
		"as many entries to be read as allowed":              {"", index(slices.Repeat([]string{bare}, manifest.MaxChildren)...), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, children: manifest.MaxChildren}},
		"one more entry to be read":                          {"", index(slices.Repeat([]string{bare}, manifest.MaxChildren+1)...), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, class: provider.ClassInvalidContent}},
		"an OCI image":                                       {manifest.OCIManifest, image(manifest.OCIConfig), what{kind: provider.KindManifest, mediaType: manifest.OCIManifest, config: true}},
		"a Docker image":                                     {manifest.DockerManifest, image(manifest.DockerConfig), what{kind: provider.KindManifest, mediaType: manifest.DockerManifest, config: true}},
		"a config type with a parameter, in capitals":        {"", image("Application/vnd.oci.image.config.v1+JSON; a=b"), what{kind: provider.KindManifest, mediaType: manifest.OCIManifest, config: true}},
		"a config type of registries of old":                 {"", image("application/octet-stream"), what{kind: provider.KindManifest, mediaType: manifest.OCIManifest, config: true}},
		"an image served as an index":                        {manifest.OCIIndex, image(manifest.OCIConfig), what{kind: provider.KindManifest, mediaType: manifest.OCIManifest, config: true, warns: "serves content type"}},
		"a sha512 config":                                    {"", strings.ReplaceAll(image(manifest.OCIConfig), sum, sum5), what{kind: provider.KindManifest, mediaType: manifest.OCIManifest, config: true}},
		"a config with a digest that is none":                {"", strings.ReplaceAll(image(manifest.OCIConfig), sum, "sha256:x"), what{kind: provider.KindManifest, mediaType: manifest.OCIManifest, class: provider.ClassInvalidContent}},
		"a config beyond the limit":                          {"", strings.Replace(image(manifest.OCIConfig), `"size":2`, `"size":8388609`, 1), what{kind: provider.KindManifest, mediaType: manifest.OCIManifest, class: provider.ClassInvalidContent}},
		"an image without a config":                          {"", `{"schemaVersion":2,"layers":[]}`, what{class: provider.ClassInvalidContent}},
		"the empty config":                                   {"", image(manifest.OCIEmpty), what{kind: provider.KindArtifact, mediaType: manifest.OCIManifest, class: provider.ClassNotRunnable}},
		"a Helm chart":                                       {"", image("application/vnd.cncf.helm.config.v1+json"), what{kind: provider.KindArtifact, mediaType: manifest.OCIManifest, class: provider.ClassNotRunnable}},
		"WASM":                                               {"", image("application/vnd.wasm.config.v0+json"), what{kind: provider.KindArtifact, mediaType: manifest.OCIManifest, class: provider.ClassNotRunnable}},
		"an artifact manifest of the first OCI draft":        {"", `{"mediaType":"` + manifest.OCIArtifact + `","artifactType":"application/spdx+json","blobs":[]}`, what{kind: provider.KindArtifact, mediaType: manifest.OCIArtifact, class: provider.ClassNotRunnable}},
		"both index and image":                               {"", `{"manifests":[` + entry(linuxAMD64) + `],` + image(manifest.OCIConfig)[1:], what{class: provider.ClassInvalidContent}},
		"both index and schema 1":                            {"", `{"manifests":[],"fsLayers":[]}`, what{class: provider.ClassInvalidContent}},
		"a field twice":                                      {"", `{"manifests":[` + entry(linuxAMD64) + `],"manifests":[` + entry(linuxARM64) + `]}`, what{class: provider.ClassInvalidContent}},
		"a platform twice in one entry":                      {"", index(strings.Replace(entry(linuxAMD64), `"size"`, `"platform":{"os":"linux","architecture":"arm64"},"size"`, 1)), what{class: provider.ClassInvalidContent}},
		"a field in the wrong case is another field":         {"", `{"Manifests":[` + entry(linuxAMD64) + `]}`, what{class: provider.ClassInvalidContent}},
		"an empty body":                                      {manifest.OCIManifest, ``, what{class: provider.ClassInvalidContent}},
		"a web page":                                         {manifest.OCIManifest, `<html>log in</html>`, what{class: provider.ClassInvalidContent}},
		"text behind the JSON":                               {"", index(entry(linuxAMD64)) + "x", what{class: provider.ClassInvalidContent}},
		"JSON cut short":                                     {"", index(entry(linuxAMD64))[:100], what{class: provider.ClassInvalidContent}},
		"JSON of another shape":                              {"", `[]`, what{class: provider.ClassInvalidContent}},
		"null":                                               {"", `null`, what{class: provider.ClassInvalidContent}},
		"an error document":                                  {"", `{"errors":[{"code":"UNKNOWN"}]}`, what{class: provider.ClassInvalidContent}},
		"JSON nested too deep":                               {"", `{"x":` + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20) + `}`, what{class: provider.ClassInvalidContent}},
		"JSON nested too deep in a platform":                 {"", index(entry(`"os.features":` + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20))), what{class: provider.ClassInvalidContent}},
		"a body of the limit":                                {"", pad(index(entry(linuxAMD64)), manifest.MaxManifest), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, platforms: "linux/amd64"}},
		"a body beyond the limit":                            {"", pad(index(entry(linuxAMD64)), manifest.MaxManifest+1), what{class: provider.ClassInvalidContent}},
		"too many platforms":                                 {"", index(many(manifest.MaxPlatforms + 1)...), what{kind: provider.KindIndex, mediaType: manifest.OCIIndex, class: provider.ClassInvalidContent}},
		"schema 1":                                           {manifest.DockerSchema1, `{"schemaVersion":1,"architecture":"arm64","fsLayers":[],"history":[{"v1Compatibility":"{\"os\":\"linux\",\"architecture\":\"arm64\"}"}]}`, what{kind: provider.KindSchema1, mediaType: manifest.DockerSchema1, platforms: "linux/arm64"}},
		"schema 1 with another architecture in its history":  {"", `{"schemaVersion":1,"architecture":"s390x","fsLayers":[],"history":[{"v1Compatibility":"{\"os\":\"linux\",\"architecture\":\"amd64\",\"variant\":\"v2\"}"}]}`, what{kind: provider.KindSchema1, mediaType: manifest.DockerSchema1, platforms: "linux/s390x", warns: "disagree"}},
		"schema 1 for windows":                               {"", `{"schemaVersion":1,"architecture":"amd64","fsLayers":[],"history":[{"v1Compatibility":"{\"os\":\"windows\",\"os.version\":\"10.0.14393\"}"}]}`, what{kind: provider.KindSchema1, mediaType: manifest.DockerSchema1, platforms: "windows(10.0.14393)/amd64"}},
		"schema 1 without an os":                             {"", `{"schemaVersion":1,"architecture":"amd64","fsLayers":[]}`, what{kind: provider.KindSchema1, mediaType: manifest.DockerSchema1, platforms: "linux/amd64", warns: "linux is assumed"}},
		"schema 1 without an architecture":                   {"", `{"schemaVersion":1,"fsLayers":[]}`, what{kind: provider.KindSchema1, mediaType: manifest.DockerSchema1, class: provider.ClassNotRunnable}},
		"schema 1 with a signature that is none":             {"", `{"schemaVersion":1,"architecture":"amd64","fsLayers":[],"signatures":[{"protected":"%"}]}`, what{kind: provider.KindSchema1, mediaType: manifest.DockerSigned1, class: provider.ClassInvalidContent}},
		"schema 1 with a signature of more than there is":    {"", `{"schemaVersion":1,"architecture":"amd64","fsLayers":[],"signatures":[{"protected":"` + base64.RawURLEncoding.EncodeToString([]byte(`{"formatLength":9999999,"formatTail":""}`)) + `"}]}`, what{kind: provider.KindSchema1, mediaType: manifest.DockerSigned1, class: provider.ClassInvalidContent}},
	} {
		t.Run(sentence, func(t *testing.T) {
			document, err := manifest.Parse(row.contentType, []byte(row.body))
			got := what{
				kind: document.Kind, mediaType: document.MediaType, platforms: strings.Join(document.Platforms, " "),
				config: document.Config != nil, children: len(document.Children), class: classOf(t, err),
			}
			warnings := strings.Join(document.Warnings, "; ")
			if strings.Contains(warnings, row.want.warns) && (warnings == "") == (row.want.warns == "") {
				got.warns = row.want.warns
			} else {
				got.warns = warnings
			}
			if diff := cmp.Diff(row.want, got, cmp.AllowUnexported(what{})); diff != "" {
				t.Errorf("want -, got +:\n%s%v", diff, err)
			}
			if len(warnings) > 1000 || err != nil && len(err.Error()) > 1000 {
				t.Errorf("texts of %d bytes: %.200s, %.200s", len(warnings), warnings, err)
			}
		})
	}
}

func with(w what, change func(*what)) what {
	change(&w)
	return w
}

func many(n int) []string {
	entries := make([]string, n)
	for i := range entries {
		entries[i] = entry(fmt.Sprintf(`"os":"linux","architecture":"a%d"`, i))
	}
	return entries
}

func pad(body string, size int) string { return body + strings.Repeat(" ", size-len(body)) }

func classOf(t *testing.T, err error) provider.Class {
	t.Helper()
	if err == nil {
		return ""
	}
	var known *provider.Error
	if !errors.As(err, &known) {
		t.Fatalf("%T is no *provider.Error: %v", err, err)
	}
	return known.Class
}

func TestWithConfig(t *testing.T) {
	for sentence, row := range map[string]struct {
		config, platforms string
		contentOnly       bool
		class             provider.Class
	}{
		"linux/amd64":                           {`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers"}}`, "linux/amd64", false, ""},
		"arm with its variant":                  {`{"os":"linux","architecture":"arm","variant":"v6"}`, "linux/arm/v6", false, ""},
		"windows with its version":              {`{"os":"windows","architecture":"amd64","os.version":"10.0.17763.1"}`, "windows(10.0.17763.1)/amd64", false, ""},
		"an alias":                              {`{"os":"linux","architecture":"aarch64"}`, "linux/arm64", false, ""},
		"no os is linux":                        {`{"architecture":"amd64"}`, "linux/amd64", false, ""},
		"no architecture is never amd64":        {`{"os":"linux"}`, "", false, provider.ClassNotRunnable},
		"an empty architecture":                 {`{"os":"linux","architecture":""}`, "", false, provider.ClassNotRunnable},
		"the empty object":                      {`{}`, "", false, provider.ClassNotRunnable},
		"an unknown platform":                   {`{"os":"unknown","architecture":"unknown"}`, "", false, provider.ClassNotRunnable},
		"a hostile architecture":                {`{"os":"linux","architecture":"../x"}`, "", false, provider.ClassInvalidContent},
		"an OLM bundle":                         {`{"os":"linux","architecture":"amd64","config":{"Labels":{"operators.operatorframework.io.bundle.manifests.v1":"manifests/"}}}`, "", true, ""},
		"an OLM bundle without an architecture": {`{"config":{"Labels":{"operators.operatorframework.io.bundle.mediatype.v1":"registry+v1"}}}`, "", true, ""},
		"an operator is no bundle":              {`{"os":"linux","architecture":"amd64","config":{"Labels":{"operators.operatorframework.io.metrics.builder":"x"}}}`, "linux/amd64", false, ""},
		"null labels":                           {`{"os":"linux","architecture":"amd64","config":{"Labels":null}}`, "linux/amd64", false, ""},
		"a null config":                         {`{"os":"linux","architecture":"amd64","config":null}`, "linux/amd64", false, ""},
		"no JSON":                               {`x`, "", false, provider.ClassInvalidContent},
		"an architecture that is a number":      {`{"os":"linux","architecture":64}`, "", false, provider.ClassInvalidContent},
		"two architectures":                     {`{"os":"linux","architecture":"amd64","architecture":"arm64"}`, "", false, provider.ClassInvalidContent},
		"more than the limit":                   {pad(`{"os":"linux","architecture":"amd64"}`, manifest.MaxConfig+1), "", false, provider.ClassInvalidContent},
		"as much as the limit":                  {pad(`{"os":"linux","architecture":"amd64"}`, manifest.MaxConfig), "linux/amd64", false, ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			document, err := manifest.Parse("", []byte(image(manifest.OCIConfig)))
			if err != nil {
				t.Fatal(err)
			}
			facts, err := document.WithConfig([]byte(row.config))
			if got := strings.Join(facts.Platforms, " "); got != row.platforms || facts.ContentOnly != row.contentOnly || classOf(t, err) != row.class || facts.Kind != provider.KindManifest {
				t.Errorf("got %+v, %v", facts, err)
			}
		})
	}
}

func TestWithChildren(t *testing.T) {
	child := func(platforms ...string) manifest.Child {
		return manifest.Child{Facts: manifest.Facts{Kind: provider.KindManifest, Platforms: platforms}}
	}
	failed := func(class provider.Class) manifest.Child {
		return manifest.Child{Err: provider.Errorf(class, "it is %s", class)}
	}
	for sentence, row := range map[string]struct {
		index       string
		children    []manifest.Child
		platforms   string
		contentOnly bool
		class       provider.Class
		warns       string
	}{
		"the child's platform joins":                    {index(entry(linuxAMD64), bare), []manifest.Child{child("linux/arm64")}, "linux/amd64 linux/arm64", false, "", ""},
		"what a nested index has joins":                 {index(bare), []manifest.Child{child("linux/arm64", "linux/amd64")}, "linux/amd64 linux/arm64", false, "", ""},
		"the index decides on the architecture":         {index(entry(`"architecture":"arm64"`)), []manifest.Child{child("linux/amd64")}, "linux/arm64", false, "", "the index says linux/arm64"},
		"the index decides on the os":                   {index(entry(`"os":"windows"`)), []manifest.Child{child("linux/amd64")}, "windows/amd64", false, "", "its config says linux/amd64"},
		"an agreeing index says nothing":                {index(entry(`"architecture":"amd64"`)), []manifest.Child{child("linux/amd64")}, "linux/amd64", false, "", ""},
		"a hostile part of a platform is ignored":       {index(entry(`"architecture":"\u0000"`)), []manifest.Child{child("linux/amd64")}, "linux/amd64", false, "", "is ignored"},
		"a child that is no image is left out":          {index(bare, bare), []manifest.Child{failed(provider.ClassNotRunnable), child("linux/amd64")}, "linux/amd64", false, "", "1 of the index's entries are left out"},
		"a child that timed out makes it unknown":       {index(entry(linuxAMD64), bare), []manifest.Child{failed(provider.ClassTimeout)}, "linux/amd64", false, provider.ClassTimeout, ""},
		"a child that is not there makes it unknown":    {index(entry(linuxAMD64), bare), []manifest.Child{failed(provider.ClassNotFound)}, "linux/amd64", false, provider.ClassNotFound, ""},
		"nothing but artifacts":                         {index(bare, bare), []manifest.Child{failed(provider.ClassNotRunnable), failed(provider.ClassNotRunnable)}, "", false, provider.ClassNotRunnable, "2 of the index's entries"},
		"artifacts and broken ones: the fault is named": {index(bare, bare), []manifest.Child{failed(provider.ClassNotRunnable), failed(provider.ClassInvalidContent)}, "", false, provider.ClassInvalidContent, "2 of the index's entries"},
		"bundles alone are content":                     {index(bare), []manifest.Child{{Facts: manifest.Facts{ContentOnly: true}}}, "", true, "", ""},
		"a bundle beside an image places a constraint":  {index(entry(linuxAMD64), bare), []manifest.Child{{Facts: manifest.Facts{ContentOnly: true}}}, "linux/amd64", false, "", ""},
		"a child that was not read":                     {index(bare), nil, "", false, provider.ClassInternal, ""},
		"too many platforms in nested indexes":          {index(bare), []manifest.Child{child(manyPlatforms(manifest.MaxPlatforms + 1)...)}, "", false, provider.ClassInvalidContent, ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			document, err := manifest.Parse("", []byte(row.index))
			if err != nil {
				t.Fatal(err)
			}
			facts, err := document.WithChildren(row.children)
			warnings := strings.Join(facts.Warnings, "; ")
			if got := strings.Join(facts.Platforms, " "); got != row.platforms || facts.ContentOnly != row.contentOnly || classOf(t, err) != row.class {
				t.Errorf("got %+v, %v", facts, err)
			}
			if !strings.Contains(warnings, row.warns) || (warnings == "") != (row.warns == "") {
				t.Errorf("warnings %q, want %q", warnings, row.warns)
			}
		})
	}
}

func manyPlatforms(n int) []string {
	platforms := make([]string, n)
	for i := range platforms {
		platforms[i] = fmt.Sprintf("linux/a%d", i)
	}
	return platforms
}

func TestInlineConfig(t *testing.T) {
	config := []byte(`{"os":"linux","architecture":"riscv64"}`)
	for sentence, row := range map[string]struct {
		digest, data string
		inline       bool
		warnings     int
	}{
		"data of the right digest is used":   {manifest.Digest(config, ""), base64.StdEncoding.EncodeToString(config), true, 0},
		"sha512 is checked as well":          {manifest.Digest(config, sum5), base64.StdEncoding.EncodeToString(config), true, 0},
		"data of another digest is not used": {sum, base64.StdEncoding.EncodeToString(config), false, 1},
		"no data is fetched":                 {manifest.Digest(config, ""), "", false, 0},
	} {
		t.Run(sentence, func(t *testing.T) {
			body := fmt.Sprintf(`{"config":{"mediaType":%q,"digest":%q,"size":%d,"data":%q},"layers":[]}`, manifest.OCIConfig, row.digest, len(config), row.data)
			document, err := manifest.Parse(manifest.OCIManifest, []byte(body))
			if err != nil {
				t.Fatal(err)
			}
			if got := document.Config.Data != nil; got != row.inline || len(document.Warnings) != row.warnings {
				t.Errorf("inline %v, warnings %q", got, document.Warnings)
			}
		})
	}
}

func TestSignedSchema1(t *testing.T) {
	payload := "{\n   \"schemaVersion\": 1,\n   \"architecture\": \"amd64\",\n   \"fsLayers\": []\n}"
	const tail = "\n}"
	length := len(payload) - len(tail)
	sign := func(length int) string {
		header, err := json.Marshal(map[string]any{"formatLength": length, "formatTail": base64.RawURLEncoding.EncodeToString([]byte(tail)), "time": "2015-01-01T00:00:00Z"})
		if err != nil {
			t.Fatal(err)
		}
		return `{"protected":"` + base64.RawURLEncoding.EncodeToString(header) + `","signature":"x"}`
	}
	signed := func(signatures ...string) []byte {
		return []byte(payload[:length] + ",\n   \"signatures\": [" + strings.Join(signatures, ",") + "]" + tail)
	}

	body := signed(sign(length), sign(length))
	document, err := manifest.Parse(manifest.DockerSigned1, body)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := document.Digest(body, ""), manifest.Digest([]byte(payload), ""); got != want {
		t.Errorf("digest %s, want the payload's, %s", got, want)
	}
	if document.Kind != provider.KindSchema1 || !slices.Equal(document.Platforms, []string{"linux/amd64"}) {
		t.Errorf("got %+v", document.Facts)
	}
	if _, err := manifest.Parse("", signed(sign(length), sign(length-1))); classOf(t, err) != provider.ClassInvalidContent {
		t.Errorf("signatures that disagree: %v", err)
	}
	unsigned := []byte(payload)
	document, err = manifest.Parse("", unsigned)
	if err != nil || document.Digest(unsigned, "") != manifest.Digest(unsigned, "") {
		t.Errorf("an unsigned manifest is named by its bytes: %v", err)
	}
}

// TestHugeIndex bounds what as many entries as fit into a manifest cost: the
// answer is right, and the memory allocated stays a small multiple of the body.
func TestHugeIndex(t *testing.T) {
	const (
		small = `{"platform":{"os":"a","architecture":"b"}},`
		last  = `{"platform":{"os":"linux","architecture":"amd64"}}]}`
		first = `{"manifests":[`
	)
	body := []byte(first + strings.Repeat(small, (manifest.MaxManifest-len(first)-len(last))/len(small)) + last)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	document, err := manifest.Parse(manifest.OCIIndex, body)
	runtime.ReadMemStats(&after)
	if err != nil || !slices.Equal(document.Platforms, []string{"a/b", "linux/amd64"}) {
		t.Fatalf("got %v, %v", document.Platforms, err)
	}
	used := after.TotalAlloc - before.TotalAlloc
	if used > 128<<20 {
		t.Errorf("%d MiB were allocated", used>>20)
	}
	t.Logf("%d MiB were allocated for %d entries", used>>20, strings.Count(string(body), "platform"))
}

func BenchmarkParseIndex(b *testing.B) {
	body := []byte(index(slices.Concat(slices.Repeat([]string{entry(linuxAMD64), entry(linuxARM64)}, 4), slices.Repeat([]string{attestation}, 8))...))
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := manifest.Parse(manifest.OCIIndex, body); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzParse: whatever the bytes, there is an answer or a durable verdict, and no
// hostile text in either.
func FuzzParse(f *testing.F) {
	f.Add(manifest.OCIIndex, []byte(index(entry(linuxAMD64), attestation, bare)), []byte(`{"os":"linux","architecture":"amd64"}`))
	f.Add("", []byte(image(manifest.OCIConfig)), []byte(`{"architecture":"arm"}`))
	f.Add("x; y", []byte(`{"schemaVersion":1,"architecture":"amd64","fsLayers":[],"history":[{"v1Compatibility":"{}"}],"signatures":[{"protected":"e30"}]}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, contentType string, body, config []byte) {
		document, err := manifest.Parse(contentType, body)
		facts := document.Facts
		switch {
		case err != nil:
		case document.Config != nil:
			facts, err = document.WithConfig(config)
		case len(document.Children) > 0:
			children := make([]manifest.Child, len(document.Children))
			for i := range children {
				children[i].Facts.Platforms = []string{"linux/amd64"}
			}
			facts, err = document.WithChildren(children)
		}
		if err != nil {
			if class := classOf(t, err); class.Retryable() {
				t.Fatalf("%v may not pass", err)
			}
			if !printable(err.Error()) {
				t.Fatalf("%q", err.Error())
			}
			return
		}
		if (len(facts.Platforms) > 0) == facts.ContentOnly || !slices.IsSorted(facts.Platforms) {
			t.Fatalf("%+v is no answer", facts)
		}
		for _, text := range slices.Concat(facts.Platforms, facts.Warnings) {
			if !printable(text) {
				t.Fatalf("%q", text)
			}
		}
	})
}

func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}
