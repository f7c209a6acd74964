package imageref_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/distribution/reference"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
)

const (
	sum256 = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	sum512 = "sha512:cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e"
)

func TestParse(t *testing.T) {
	for sentence, row := range map[string]struct{ text, registry, repository, tag, digest string }{
		"a short name is Docker Hub's library":         {"busybox", "docker.io", "library/busybox", "latest", ""},
		"a name of two parts is Docker Hub's":          {"grafana/grafana:11", "docker.io", "grafana/grafana", "11", ""},
		"docker.io is Docker Hub":                      {"docker.io/busybox", "docker.io", "library/busybox", "latest", ""},
		"index.docker.io is Docker Hub":                {"index.docker.io/library/busybox:1", "docker.io", "library/busybox", "1", ""},
		"registry-1.docker.io is a host of its own":    {"registry-1.docker.io/library/busybox", "registry-1.docker.io", "library/busybox", "latest", ""},
		"no library is added elsewhere":                {"quay.io/x", "quay.io", "x", "latest", ""},
		"a port makes a host":                          {"registry:5000/x:1.2", "registry:5000", "x", "1.2", ""},
		"localhost is a host":                          {"localhost/x", "localhost", "x", "latest", ""},
		"localhost with a port is a host":              {"localhost:5000/a/b", "localhost:5000", "a/b", "latest", ""},
		"localhost alone is a repository":              {"localhost", "docker.io", "library/localhost", "latest", ""},
		"a number after a colon may be a tag":          {"localhost:5000", "docker.io", "library/localhost", "5000", ""},
		"an IPv6 address in brackets is a host":        {"[::1]:5000/x:1", "[::1]:5000", "x", "1", ""},
		"an IPv6 address needs no port":                {"[2001:db8::1]/a/b", "[2001:db8::1]", "a/b", "latest", ""},
		"an IPv4 address is a host":                    {"10.0.0.1:5000/x", "10.0.0.1:5000", "x", "latest", ""},
		"a digest alone has no tag":                    {"quay.io/x@" + sum256, "quay.io", "x", "", sum256},
		"a tag beside a digest is kept":                {"host:5000/x:1@" + sum256, "host:5000", "x", "1", sum256},
		"sha512 is a digest":                           {"x@" + sum512, "docker.io", "library/x", "", sum512},
		"a host keeps its capitals":                    {"Registry.example/x", "Registry.example", "x", "latest", ""},
		"a tag may have capitals and begin with _":     {"x:_V1.0-Beta", "docker.io", "library/x", "_V1.0-Beta", ""},
		"separators of the path are the spec's":        {"x.y/a__b/c-d---e/f.g_h", "x.y", "a__b/c-d---e/f.g_h", "latest", ""},
		"the longest tag has 128 characters":           {"x:" + strings.Repeat("a", 128), "docker.io", "library/x", strings.Repeat("a", 128), ""},
		"the longest repository has 255 characters":    {"q.io/" + strings.Repeat("a", 255), "q.io", strings.Repeat("a", 255), "latest", ""},
		"64 hexadecimal digits behind a host are fine": {"q.io/" + strings.Repeat("a", 64), "q.io", strings.Repeat("a", 64), "latest", ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			ref, err := imageref.Parse(row.text)
			if err != nil {
				t.Fatal(err)
			}
			if ref.Registry() != row.registry || ref.Repository() != row.repository || ref.Tag() != row.tag || ref.Digest() != row.digest {
				t.Errorf("got registry %q, repository %q, tag %q, digest %q", ref.Registry(), ref.Repository(), ref.Tag(), ref.Digest())
			}
			again, err := imageref.Parse(ref.String())
			if err != nil || again != ref {
				t.Errorf("Parse(%q) = %v, %v, which is not a fixed point", ref.String(), again, err)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for sentence, row := range map[string]struct{ text, says string }{
		"the empty string":                        {"", "empty"},
		"white space before":                      {" busybox", "white space"},
		"white space behind":                      {"busybox\n", "white space"},
		"white space alone":                       {" ", "white space"},
		"a control character":                     {"busy\x00box", `the character '\x00'`},
		"an escape sequence, shown escaped":       {"busy\x1b[31mbox", `"busy\x1b[31mbox"`},
		"a letter that is not ASCII":              {"büsybox", `'\u00fc'`},
		"broken UTF-8":                            {"busybox\xff", `\xff`},
		"an upper-case repository":                {"quay.io/Foo", "lower case"},
		"an upper-case short name":                {"Busybox", "lower case"},
		"an upper-case first part without a dot":  {"Foo/bar", "lower case"},
		"two digests":                             {"x@" + sum256 + "@" + sum256, "two digests"},
		"a short digest":                          {"x@sha256:abc", "no sha256 or sha512 digest"},
		"a digest in capitals":                    {"x@" + strings.ToUpper(sum256), "no sha256"},
		"a digest of another algorithm":           {"x@sha384:" + strings.Repeat("a", 96), "no sha256"},
		"md5":                                     {"x@md5:d41d8cd98f00b204e9800998ecf8427e", "no sha256"},
		"an empty digest":                         {"x@", "no sha256"},
		"an empty tag":                            {"x:", "tag after the colon is empty"},
		"a tag that begins with a dot":            {"x:.a", "no tag"},
		"a tag of 129 characters":                 {"x:" + strings.Repeat("a", 129), "malformed"},
		"no repository before the digest":         {"@" + sum256, "no repository"},
		"no repository behind the host":           {"quay.io/", "malformed"},
		"a path that climbs":                      {"quay.io/../x", "no repository"},
		"an empty part of the path":               {"quay.io/a//b", "no repository"},
		"a path that ends with a slash":           {"quay.io/a/", "no repository"},
		"a path that begins with a dash":          {"quay.io/-a", "no repository"},
		"three underscores":                       {"quay.io/a___b", "no repository"},
		"a scheme":                                {"https://quay.io/x", "scheme"},
		"another scheme":                          {"docker://quay.io/x", "scheme"},
		"a port of 0":                             {"quay.io:0/x", "no registry host"},
		"a port above 65535":                      {"quay.io:65536/x", "no registry host"},
		"an empty port":                           {"quay.io:/x", "no registry host"},
		"a user in the host":                      {"user:pass@quay.io/x", "no sha256"},
		"a percent in the host":                   {"a%2eb.io/x", "malformed"},
		"a host with an underscore":               {"a_b.io/x", "no registry host"},
		"an empty label in the host":              {"a..io/x", "no registry host"},
		"a zone in an IPv6 address":               {"[fe80::1%25eth0]/x", "malformed"},
		"an IPv4 address in brackets":             {"[127.0.0.1]/x", "malformed"},
		"brackets that do not close":              {"[::1/x", "malformed"},
		"an image ID":                             {strings.Repeat("a", 64), "image ID"},
		"a structured key":                        {`{"image":"x"}`, "malformed"},
		"a repository of 256 characters":          {"q.io/" + strings.Repeat("a", 256), "malformed"},
		"a library repository that gets too long": {strings.Repeat("a", 250), "longer than 255"},
		"a mebibyte":                              {strings.Repeat("a", 1<<20), "longer than 1024 bytes"},
		"a query":                                 {"quay.io/x?y=z", "malformed"},
	} {
		t.Run(sentence, func(t *testing.T) {
			ref, err := imageref.Parse(row.text)
			if err == nil {
				t.Fatalf("read as %s", ref)
			}
			var known *provider.Error
			if !errors.As(err, &known) || known.Class != provider.ClassMalformed {
				t.Fatalf("%v is not of class malformed", err)
			}
			if !strings.Contains(known.Message, row.says) {
				t.Errorf("%q does not say %q", known.Message, row.says)
			}
			if len(known.Message) > 600 {
				t.Errorf("the message has %d bytes", len(known.Message))
			}
		})
	}
}

func TestWithName(t *testing.T) {
	for sentence, row := range map[string]struct{ text, place, want string }{
		"tag and digest move":         {"quay.io/a:1@" + sum256, "mirror.local:5000/q/a", "mirror.local:5000/q/a:1@" + sum256},
		"no tag is made up":           {"quay.io/a@" + sum256, "mirror.local/a", "mirror.local/a@" + sum256},
		"latest stays latest":         {"quay.io/a", "localhost/a", "localhost/a:latest"},
		"a place with a tag":          {"quay.io/a", "localhost/a:1", ""},
		"a place with the tag latest": {"quay.io/a", "localhost/a:latest", ""},
		"a place with a digest":       {"quay.io/a", "localhost/a@" + sum256, ""},
		"a place that is none":        {"quay.io/a", "localhost//a", ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			ref, err := imageref.Parse(row.text)
			if err != nil {
				t.Fatal(err)
			}
			moved, err := ref.WithName(row.place)
			if moved.String() != row.want || (err == nil) != (row.want != "") {
				t.Errorf("got %q, %v; want %q", moved, err, row.want)
			}
		})
	}
}

func TestWithDigest(t *testing.T) {
	ref, err := imageref.Parse("quay.io/a:1")
	if err != nil {
		t.Fatal(err)
	}
	pinned, err := ref.WithDigest(sum256)
	if want := "quay.io/a:1@" + sum256; err != nil || pinned.String() != want {
		t.Errorf("got %q, %v; want %q", pinned, err, want)
	}
	if _, err := ref.WithDigest("sha256:x"); err == nil {
		t.Error("a digest that is none was taken")
	}
}

// FuzzParse holds Parse against the parser of the kubelet, containerd and
// CRI-O: what we read, they read, to the same canonical text.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"busybox", "docker.io/busybox:1", "[::1]:5000/x:1", "localhost:5000/a/b@" + sum256, "a.b/c__d:1@" + sum512,
		"Foo/bar", "x@y@z", "index.docker.io/x", "a/b/c/../d", "host:99999/x", "\x00", "q.io/" + strings.Repeat("a", 64),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ref, err := imageref.Parse(text)
		if err != nil {
			if ref != (imageref.Reference{}) {
				t.Fatalf("%q: a reference beside an error", text)
			}
			var known *provider.Error
			if !errors.As(err, &known) || known.Class != provider.ClassMalformed || !utf8.ValidString(known.Message) {
				t.Fatalf("%q: bad error %v", text, err)
			}
			return
		}
		if again, err := imageref.Parse(ref.String()); err != nil || again != ref {
			t.Fatalf("%q: %q is no fixed point: %q, %v", text, ref, again, err)
		}
		theirs, err := reference.ParseNormalizedNamed(text)
		if err != nil {
			t.Fatalf("%q is read as %q; runtimes refuse it: %v", text, ref, err)
		}
		if got := reference.TagNameOnly(theirs).String(); got != ref.String() {
			t.Fatalf("%q is read as %q; runtimes read %q", text, ref, got)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for b.Loop() {
		if _, err := imageref.Parse("registry.example.com:5000/team/project/app:v1.2.3@" + sum256); err != nil {
			b.Fatal(err)
		}
	}
}
