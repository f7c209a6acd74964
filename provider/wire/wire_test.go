package wire_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/wire"
)

const sum = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// Answers of every shape, and the two JSON texts that each has.
func answers() map[string]struct {
	answer       provider.Answer
	image, value string
} {
	return map[string]struct {
		answer       provider.Answer
		image, value string
	}{
		"known": {
			provider.Answer{
				Image: "x", Reference: "docker.io/library/x:latest", Digest: sum, Kind: provider.KindIndex, Mirror: "mirror.local/x",
				Platforms: []string{"linux/amd64", "linux/arm/v7"}, Architectures: []string{"amd64", "arm"}, Warnings: []string{"w"}, CredentialSource: "anonymous",
			},
			`{"image":"x","reference":"docker.io/library/x:latest","digest":"` + sum + `","kind":"index","platforms":["linux/amd64","linux/arm/v7"],"architectures":["amd64","arm"],"mirror":"mirror.local/x"}`,
			`{"architectures":["amd64","arm"],"platforms":["linux/amd64","linux/arm/v7"],"digest":"` + sum + `","kind":"index"}`,
		},
		"no linux": {
			provider.Answer{Image: "w", Reference: "r/w:1", Digest: sum, Kind: provider.KindManifest, Platforms: []string{"windows/amd64"}},
			`{"image":"w","reference":"r/w:1","digest":"` + sum + `","kind":"manifest","platforms":["windows/amd64"],"architectures":[]}`,
			`{"architectures":[],"platforms":["windows/amd64"],"digest":"` + sum + `","kind":"manifest"}`,
		},
		"content only": {
			provider.Answer{Image: "b", Reference: "r/b:1", Digest: sum, Kind: provider.KindManifest, ContentOnly: true},
			`{"image":"b","reference":"r/b:1","digest":"` + sum + `","kind":"manifest","architectures":[],"contentOnly":true}`,
			`{"architectures":[],"platforms":[],"digest":"` + sum + `","kind":"manifest","contentOnly":true}`,
		},
		"an error with a status": {
			provider.Answer{
				Image: "e", Reference: "r/e:1", Platforms: []string{"linux/amd64"}, Architectures: []string{"amd64"}, ContentOnly: true,
				Err: &provider.Error{Class: provider.ClassRateLimited, Message: "slow down", HTTPStatus: 429},
			},
			`{"image":"e","reference":"r/e:1","error":{"class":"rate-limited","message":"slow down","retryable":true,"httpStatus":429}}`, "",
		},
		"a durable error": {
			provider.Answer{Image: "", Err: &provider.Error{Class: provider.ClassMalformed, Message: "empty"}},
			`{"image":"","error":{"class":"malformed","message":"empty","retryable":false}}`, "",
		},
	}
}

func TestJSON(t *testing.T) {
	for sentence, row := range answers() {
		t.Run(sentence, func(t *testing.T) {
			image, err := json.Marshal(wire.FromAnswer(row.answer))
			if err != nil || string(image) != row.image {
				t.Errorf("image object %v\n got %s\nwant %s", err, image, row.image)
			}
			if row.value == "" {
				return
			}
			value, err := json.Marshal(wire.ValueFromAnswer(row.answer))
			if err != nil || string(value) != row.value {
				t.Errorf("value %v\n got %s\nwant %s", err, value, row.value)
			}
		})
	}
}

func TestAnswersTravel(t *testing.T) {
	for sentence, row := range answers() {
		t.Run(sentence, func(t *testing.T) {
			var image wire.Image
			if err := json.Unmarshal([]byte(row.image), &image); err != nil {
				t.Fatal(err)
			}
			want := row.answer
			want.Warnings, want.CredentialSource = nil, ""
			if want.Err != nil {
				want.Platforms, want.Architectures, want.ContentOnly = nil, nil, false
			}
			if diff := cmp.Diff(want, image.Answer(), cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(provider.Error{})); diff != "" {
				t.Errorf("the image object: want -, got +:\n%s", diff)
			}
			if row.value == "" {
				return
			}
			got, err := wire.ParseValue(want.Image, []byte(row.value))
			want.Reference, want.Mirror = "", ""
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || err != nil {
				t.Errorf("the value: %v, want -, got +:\n%s", err, diff)
			}
		})
	}
}

func TestValuesThatAreNone(t *testing.T) {
	for sentence, text := range map[string]string{
		"no platforms must not read as runs nowhere": `{"architectures":[],"platforms":[],"digest":"","kind":""}`,
		"the empty object":                           `{}`,
		"null":                                       `null`,
		"a string":                                   `"x"`,
		"no JSON":                                    `{`,
	} {
		t.Run(sentence, func(t *testing.T) {
			answer, err := wire.ParseValue("x", []byte(text))
			var known *provider.Error
			if !errors.As(err, &known) || known.Class != provider.ClassInternal {
				t.Errorf("got %+v, %v", answer, err)
			}
		})
	}
}

func TestParseItemError(t *testing.T) {
	for _, class := range provider.Classes() {
		want := provider.Errorf(class, "quay.io said: 418")
		if got := wire.ParseItemError(want.Error()); got.Class != class || got.Message != want.Message {
			t.Errorf("%s: got %v", class, got)
		}
	}
	for _, text := range []string{"", "x", "timeout", "timeout: ", "Timeout: x"} {
		if got := wire.ParseItemError(text); got.Class != provider.ClassInternal {
			t.Errorf("%q: got %v", text, got)
		}
	}
}

func TestParseKey(t *testing.T) {
	full := wire.Key{Image: "x", ImagePullSecrets: []string{"s", "t.u"}, Namespace: "ns", ServiceAccount: "default", V: 1}
	for sentence, row := range map[string]struct {
		text string
		want wire.Key
	}{
		"as json.marshal writes it":           {`{"image":"x","imagePullSecrets":["s","t.u"],"namespace":"ns","serviceAccount":"default","v":1}`, full},
		"in another order, with spaces":       {`{ "v": 1, "serviceAccount": "default", "namespace": "ns", "imagePullSecrets": ["s", "t.u"], "image": "x" }`, full},
		"without secrets and service account": {`{"image":"x","namespace":"ns","v":1}`, wire.Key{Image: "x", Namespace: "ns", V: 1}},
		"with null secrets":                   {`{"image":"x","imagePullSecrets":null,"namespace":"ns","v":1}`, wire.Key{Image: "x", Namespace: "ns", V: 1}},
		"empty names of secrets are dropped":  {`{"image":"x","imagePullSecrets":["","s",""],"namespace":"ns","v":1}`, wire.Key{Image: "x", ImagePullSecrets: []string{"s"}, Namespace: "ns", V: 1}},
		"a malformed image is the image's":    {`{"image":" X ","namespace":"ns","v":1}`, wire.Key{Image: " X ", Namespace: "ns", V: 1}},
	} {
		t.Run(sentence, func(t *testing.T) {
			key, err := wire.ParseKey(row.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, key); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
		})
	}
}

func TestParseKeyRefuses(t *testing.T) {
	for sentence, row := range map[string]struct{ text, says string }{
		"a plain reference":              {`x`, "no JSON object"},
		"nothing":                        {``, "no JSON object"},
		"an array":                       {`["x"]`, "no JSON object"},
		"white space before":             {` {"image":"x","namespace":"ns","v":1}`, "no JSON object"},
		"text behind":                    {`{"image":"x","namespace":"ns","v":1}x`, "cannot be read"},
		"two keys":                       {`{"image":"x","namespace":"ns","v":1}{"image":"x","namespace":"ns","v":1}`, "cannot be read"},
		"an unknown field":               {`{"image":"x","namespace":"ns","v":1,"user":"root"}`, `unknown field "user"`},
		"a field in the wrong case":      {`{"Image":"x","namespace":"ns","v":1}`, "unknown field"},
		"a field twice":                  {`{"image":"x","image":"y","namespace":"ns","v":1}`, "duplicate field"},
		"no version":                     {`{"image":"x","namespace":"ns"}`, "v = 1"},
		"version 2":                      {`{"image":"x","namespace":"ns","v":2}`, "v = 1"},
		"a version that is a string":     {`{"image":"x","namespace":"ns","v":"1"}`, "cannot be read"},
		"no image":                       {`{"namespace":"ns","v":1}`, "no image"},
		"an empty image":                 {`{"image":"","namespace":"ns","v":1}`, "no image"},
		"a null image":                   {`{"image":null,"namespace":"ns","v":1}`, "no image"},
		"an image that is an object":     {`{"image":{},"namespace":"ns","v":1}`, "cannot be read"},
		"no namespace":                   {`{"image":"x","v":1}`, "no valid namespace"},
		"an empty namespace":             {`{"image":"x","namespace":"","v":1}`, "no valid namespace"},
		"a namespace that climbs":        {`{"image":"x","namespace":"../x","v":1}`, "no valid namespace"},
		"a namespace with a dot":         {`{"image":"x","namespace":"a.b","v":1}`, "no valid namespace"},
		"a namespace of 64 characters":   {`{"image":"x","namespace":"` + strings.Repeat("a", 64) + `","v":1}`, "no valid namespace"},
		"a service account in capitals":  {`{"image":"x","namespace":"ns","serviceAccount":"A","v":1}`, "no valid serviceAccount"},
		"a secret with a slash":          {`{"image":"x","imagePullSecrets":["a/b"],"namespace":"ns","v":1}`, `invalid pull secret: "a/b"`},
		"secrets that are a string":      {`{"image":"x","imagePullSecrets":"s","namespace":"ns","v":1}`, "cannot be read"},
		"more secrets than the limit":    {`{"image":"x","imagePullSecrets":["a"` + strings.Repeat(`,"a"`, wire.MaxPullSecrets) + `],"namespace":"ns","v":1}`, "more than 64"},
		"a key beyond the limit":         {`{"image":"` + strings.Repeat("a", wire.MaxKey) + `","namespace":"ns","v":1}`, "longer than"},
		"a hostile name, shown escaped":  {`{"image":"x","namespace":"\u001b[31m","v":1}`, `"\x1b[31m"`},
		"a hostile field, shown escaped": {"{\"image\":\"x\",\"namespace\":\"ns\",\"v\":1,\"\\u001b\":1}", `\`},
	} {
		t.Run(sentence, func(t *testing.T) {
			key, err := wire.ParseKey(row.text)
			var known *provider.Error
			if !errors.As(err, &known) || known.Class != provider.ClassMalformed {
				t.Fatalf("got %+v, %v", key, err)
			}
			if !strings.Contains(known.Message, row.says) {
				t.Errorf("%q does not say %q", known.Message, row.says)
			}
			if strings.ContainsFunc(known.Message, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("%q is not safe to show", known.Message)
			}
		})
	}
}

func TestKeyAndQuery(t *testing.T) {
	query := provider.Query{Image: "x", Scope: provider.Scope{Namespace: "ns", ServiceAccount: "sa", ImagePullSecrets: []string{"s"}}}
	if diff := cmp.Diff(query, wire.KeyFromQuery(query).Query()); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
}

func TestSystemError(t *testing.T) {
	entries := func(n, keyLength, messageLength int) []wire.Undetermined {
		list := make([]wire.Undetermined, n)
		for i := range list {
			list[i] = wire.Undetermined{
				Key:   fmt.Sprintf("%03d%s", i, strings.Repeat("k", keyLength)),
				Class: provider.ClassTimeout, Message: strings.Repeat("é", messageLength/2),
			}
		}
		return list
	}
	for sentence, row := range map[string]struct {
		entries   []wire.Undetermined
		kept      int
		messageOf int // bytes of the first message
	}{
		"one": {entries(1, 10, 20), 1, 20},
		"messages are cut before keys are dropped":   {entries(60, 100, 1000), 60, 120},
		"then messages are left out":                 {entries(100, 100, 1000), 100, 0},
		"then keys are":                              {entries(512, 100, 1000), 112, 0},
		"a key that never fits does not hide others": {append(entries(1, 20<<10, 10), entries(2, 10, 10)...), 2, 0},
	} {
		t.Run(sentence, func(t *testing.T) {
			text := wire.EncodeSystemError(row.entries)
			if len(text) > wire.MaxSystemError || !json.Valid([]byte(text)) {
				t.Fatalf("%d bytes, valid JSON: %v", len(text), json.Valid([]byte(text)))
			}
			got, err := wire.ParseSystemError(text)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Undetermined) != row.kept || len(got.Undetermined[0].Message) != row.messageOf {
				t.Errorf("%d keys, the first message has %d bytes", len(got.Undetermined), len(got.Undetermined[0].Message))
			}
		})
	}
	if got := wire.EncodeSystemError(nil); got != "" {
		t.Errorf("no keys give %q", got)
	}
	want := `{"v":1,"undetermined":[{"key":"x","class":"timeout","message":"late"}]}`
	if got := wire.EncodeSystemError([]wire.Undetermined{{Key: "x", Class: provider.ClassTimeout, Message: "late"}}); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestSystemErrorsOfOthers(t *testing.T) {
	for _, text := range []string{"broken", `{"v":2,"undetermined":[]}`, `{}`, `[]`, `{"v":1`} {
		if got, err := wire.ParseSystemError(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
	if got, err := wire.ParseSystemError(""); err != nil || len(got.Undetermined) != 0 {
		t.Errorf("none: %+v, %v", got, err)
	}
	if got := (wire.Undetermined{Class: "new", Message: "m"}).Error(); got.Class != provider.ClassInternal || got.Message != "m" {
		t.Errorf("an unknown class: %v", got)
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add(`{"image":"x","imagePullSecrets":["s"],"namespace":"ns","serviceAccount":"default","v":1}`)
	f.Add(`{"image":"x","image":"y"}`)
	f.Add("{\"\x00\":1}")
	f.Fuzz(func(t *testing.T, text string) {
		key, err := wire.ParseKey(text)
		if err != nil {
			var known *provider.Error
			if !errors.As(err, &known) || known.Class != provider.ClassMalformed {
				t.Fatal(err)
			}
			return
		}
		again, err := wire.ParseKey(key.String())
		if len(key.String()) > wire.MaxKey { // escapes may be longer than what they stand for
			return
		}
		if diff := cmp.Diff(key, again); err != nil || diff != "" {
			t.Fatalf("%q: %v\n%s", text, err, diff)
		}
	})
}

func FuzzSystemError(f *testing.F) {
	f.Add("key", "message", 600)
	f.Add("\xff\x00<", "é", 1)
	f.Fuzz(func(t *testing.T, key, message string, n int) {
		n = min(max(n, 1), 600)
		list := make([]wire.Undetermined, n)
		for i := range list {
			list[i] = wire.Undetermined{Key: key, Class: provider.ClassTimeout, Message: message}
		}
		text := wire.EncodeSystemError(list)
		if len(text) > wire.MaxSystemError || !utf8.ValidString(text) {
			t.Fatalf("%d bytes", len(text))
		}
		if _, err := wire.ParseSystemError(text); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzParseSystemError(f *testing.F) {
	f.Add(`{"v":1,"undetermined":[{"key":"x","class":"timeout","message":"late"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := wire.ParseSystemError(text)
		if err == nil && text != "" && parsed.V != wire.SystemErrorVersion {
			t.Fatalf("%q: version %d", text, parsed.V)
		}
	})
}

func FuzzParseValue(f *testing.F) {
	f.Add([]byte(`{"architectures":["amd64"],"platforms":["linux/amd64"],"digest":"","kind":"index"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		answer, err := wire.ParseValue("x", data)
		if err == nil && len(answer.Platforms) == 0 && !answer.ContentOnly {
			t.Fatalf("%q reads as runs nowhere", data)
		}
	})
}
