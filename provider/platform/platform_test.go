package platform_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/containerd/platforms"
	"github.com/google/go-cmp/cmp"

	"github.com/archkeeper/archkeeper/provider/platform"
)

func TestNormalize(t *testing.T) {
	for sentence, row := range map[string]struct{ os, version, architecture, variant, want string }{
		"plain":                               {"linux", "", "amd64", "", "linux/amd64"},
		"capitals go":                         {"Linux", "", "AMD64", "", "linux/amd64"},
		"x86_64 is amd64":                     {"linux", "", "x86_64", "", "linux/amd64"},
		"x86-64 is amd64":                     {"linux", "", "x86-64", "", "linux/amd64"},
		"aarch64 is arm64":                    {"linux", "", "aarch64", "", "linux/arm64"},
		"arm64/v8 is arm64":                   {"linux", "", "arm64", "v8", "linux/arm64"},
		"arm64/8 is arm64":                    {"linux", "", "arm64", "8", "linux/arm64"},
		"arm64/v8.2 is kept":                  {"linux", "", "arm64", "v8.2", "linux/arm64/v8.2"},
		"arm without a variant is v7":         {"linux", "", "arm", "", "linux/arm/v7"},
		"arm/6 is v6":                         {"linux", "", "arm", "6", "linux/arm/v6"},
		"arm keeps v5":                        {"linux", "", "arm", "v5", "linux/arm/v5"},
		"armhf is arm/v7":                     {"linux", "", "armhf", "", "linux/arm/v7"},
		"armel is arm/v6":                     {"linux", "", "armel", "", "linux/arm/v6"},
		"i386 is 386":                         {"linux", "", "i386", "", "linux/386"},
		"amd64/v1 is amd64":                   {"linux", "", "amd64", "v1", "linux/amd64"},
		"amd64/v2 is kept":                    {"linux", "", "amd64", "v2", "linux/amd64/v2"},
		"macos is darwin":                     {"macos", "", "arm64", "", "darwin/arm64"},
		"windows keeps its version":           {"windows", "10.0.17763.1", "amd64", "", "windows(10.0.17763.1)/amd64"},
		"any other system keeps its version":  {"linux", "5.10", "amd64", "", "linux(5.10)/amd64"},
		"an architecture that nobody knows":   {"linux", "", "e2k", "", "linux/e2k"},
		"the longest part has 63 characters":  {"linux", "", strings.Repeat("a", 63), "", "linux/" + strings.Repeat("a", 63)},
		"an empty os is not that of the host": {"", "", "amd64", "", ""},
		"an empty architecture":               {"linux", "", "", "", ""},
		"unknown/unknown":                     {"unknown", "", "unknown", "", ""},
		"an unknown architecture alone":       {"linux", "", "Unknown", "", ""},
		"an unknown os alone":                 {"unknown", "", "amd64", "", ""},
		"a part of 64 characters":             {"linux", "", strings.Repeat("a", 64), "", ""},
		"a mebibyte":                          {"linux", "", strings.Repeat("a", 1<<20), "", ""},
		"a slash":                             {"linux", "", "amd64/../x", "", ""},
		"a dot alone":                         {"linux", "", "..", "", ""},
		"a control character":                 {"linux", "", "amd64\x00", "", ""},
		"a trailing line feed":                {"linux", "", "amd64\n", "", ""},
		"white space":                         {"linux", "", " amd64", "", ""},
		"a trailing dash":                     {"linux", "", "amd64-", "", ""},
		"a comma":                             {"linux", "", "amd64,arm64", "", ""},
		"what is not ASCII":                   {"linux", "", "amd64é", "", ""},
		"the Kelvin sign, which folds to k":   {"\u212a", "", "amd64", "", ""},
		"brackets in the os":                  {"windows(10)", "", "amd64", "", ""},
		"a hostile variant":                   {"linux", "", "arm", "v7/../../x", ""},
		"a hostile version":                   {"windows", "10)/x", "amd64", "", ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			p, err := platform.Normalize(row.os, row.version, row.architecture, row.variant)
			if p.String() != row.want || (err == nil) != (row.want != "") {
				t.Fatalf("got %q, %v; want %q", p, err, row.want)
			}
			if err != nil {
				if len(err.Error()) > 500 {
					t.Errorf("the message has %d bytes", len(err.Error()))
				}
				return
			}
			if again, err := platform.Parse(p.String()); err != nil || again != p {
				t.Errorf("Parse(%q) = %v, %v", p, again, err)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for sentence, text := range map[string]string{
		"nothing":                   "",
		"an os alone":               "linux",
		"an architecture alone":     "amd64",
		"an empty variant":          "linux/arm/",
		"an empty os":               "/amd64",
		"four parts":                "linux/arm/v7/x",
		"an open bracket":           "windows(10/amd64",
		"an empty version":          "windows()/amd64",
		"a wildcard":                "linux/*",
		"white space":               "linux/amd64 ",
		"several, between commas":   "linux/amd64,linux/arm64",
		"text behind the bracket":   "windows(10)x/amd64",
		"operating system features": "windows(10.0+win32k)/amd64",
	} {
		t.Run(sentence, func(t *testing.T) {
			if p, err := platform.Parse(text); err == nil {
				t.Errorf("%q is read as %s", text, p)
			}
		})
	}
}

func TestArchitectures(t *testing.T) {
	for sentence, row := range map[string]struct{ platforms, want []string }{
		"none gives none, and not nil":    {nil, []string{}},
		"sorted, without duplicates":      {[]string{"linux/arm64", "linux/amd64", "linux/arm64/v8.2"}, []string{"amd64", "arm64"}},
		"386 also gives amd64":            {[]string{"linux/386"}, []string{"386", "amd64"}},
		"arm does not give arm64":         {[]string{"linux/arm/v7"}, []string{"arm"}},
		"amd64/v2 gives amd64":            {[]string{"linux/amd64/v2"}, []string{"amd64"}},
		"windows gives none":              {[]string{"windows(10.0.17763.1)/amd64"}, []string{}},
		"other systems give none":         {[]string{"freebsd/amd64", "wasi/wasm"}, []string{}},
		"linux beside windows":            {[]string{"linux/s390x", "windows/amd64"}, []string{"s390x"}},
		"what is no platform gives none":  {[]string{"x", "", "linux/\x00"}, []string{}},
		"windows on 386 is not for linux": {[]string{"windows/386"}, []string{}},
	} {
		t.Run(sentence, func(t *testing.T) {
			if diff := cmp.Diff(row.want, platform.Architectures(row.platforms)); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
		})
	}
}

func TestRunsOn(t *testing.T) {
	for sentence, row := range map[string]struct {
		image, node string
		want        bool
	}{
		"the same":                           {"linux/amd64", "linux/amd64", true},
		"another architecture":               {"linux/amd64", "linux/arm64", false},
		"another system":                     {"windows/amd64", "linux/amd64", false},
		"any version of windows":             {"windows(10.0.17763.1)/amd64", "windows/amd64", true},
		"another version of windows":         {"windows(10.0.17763.1)/amd64", "windows(10.0.20348.1)/amd64", false},
		"the same version of windows":        {"windows(10.0.17763.1)/amd64", "windows(10.0.17763.1)/amd64", true},
		"no version for a node that has one": {"windows/amd64", "windows(10.0.17763.1)/amd64", false},
		"a lower arm on a higher":            {"linux/arm/v6", "linux/arm/v7", true},
		"a higher arm on a lower":            {"linux/arm/v7", "linux/arm/v6", false},
		"arm on arm64":                       {"linux/arm/v7", "linux/arm64", false},
		"a lower amd64 on a higher":          {"linux/amd64/v2", "linux/amd64/v3", true},
		"plain amd64 on a higher":            {"linux/amd64", "linux/amd64/v3", true},
		"a higher amd64 on a plain one":      {"linux/amd64/v2", "linux/amd64", false},
		"386 on amd64":                       {"linux/386", "linux/amd64", true},
		"amd64 on 386":                       {"linux/amd64", "linux/386", false},
		"plain arm64 on v9":                  {"linux/arm64", "linux/arm64/v9", true},
		"v9 on plain arm64":                  {"linux/arm64/v9", "linux/arm64", false},
		"a variant that grows without end":   {"linux/amd64", "linux/amd64/v999999999", false},
		"an architecture that nobody knows":  {"linux/e2k", "linux/e2k", true},
	} {
		t.Run(sentence, func(t *testing.T) {
			image, err := platform.Parse(row.image)
			if err != nil {
				t.Fatal(err)
			}
			node, err := platform.Parse(row.node)
			if err != nil {
				t.Fatal(err)
			}
			if got := image.RunsOn(node); got != row.want {
				t.Errorf("%s on %s: %v", image, node, got)
			}
		})
	}
}

// FuzzNormalize: what comes out could be a label, is a fixed point, and is what
// containerd writes.
func FuzzNormalize(f *testing.F) {
	f.Add("linux", "", "arm64", "v8")
	f.Add("windows", "10.0.17763.1", "amd64", "")
	f.Add("\u212a", "a(b", "../x", "\x00")
	safe := regexp.MustCompile(`^[a-z0-9_.-]+(\([A-Za-z0-9_.-]+\))?(/[a-z0-9_.-]+){1,2}$`)
	f.Fuzz(func(t *testing.T, os, version, architecture, variant string) {
		p, err := platform.Normalize(os, version, architecture, variant)
		if err != nil {
			if p != (platform.Platform{}) {
				t.Fatal("a platform beside an error")
			}
			return
		}
		text := p.String()
		if !safe.MatchString(text) {
			t.Fatalf("%q came out", text)
		}
		theirs := platforms.FormatAll(platforms.Normalize(platforms.Platform{OS: os, OSVersion: version, Architecture: architecture, Variant: variant}))
		if text != theirs {
			t.Fatalf("%q, containerd writes %q", text, theirs)
		}
		if again, err := platform.Parse(text); err != nil || again != p {
			t.Fatalf("%q is read back as %q: %v", text, again, err)
		}
	})
}
