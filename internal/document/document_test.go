package document_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/archkeeper/archkeeper/internal/document"
)

func TestOne(t *testing.T) {
	for name, tc := range map[string]struct {
		file, want, fails string
	}{
		"YAML":                           {file: "a: 1\n", want: `{"a":1}`},
		"JSON":                           {file: `{"a": 1}`, want: `{"a":1}`},
		"between empty documents":        {file: "# about\n---\n---\na: 1\n---\n", want: `{"a":1}`},
		"two":                            {file: "a: 1\n---\nb: 2\n", fails: document.ErrSeveral.Error()},
		"two that are equal":             {file: "a: 1\n---\na: 1\n", fails: document.ErrSeveral.Error()},
		"none":                           {file: "# nothing\n", fails: document.ErrEmpty.Error()},
		"no bytes":                       {fails: document.ErrEmpty.Error()},
		"a key twice":                    {file: "a: 1\na: 2\n", fails: `line 2: key "a" already set`},
		"a key twice, behind a comment":  {file: "# one\n# two\n---\na: 1\na: 2\n", fails: `line 5: key "a" already set`},
		"broken, behind empty documents": {file: "---\n---\n\n---\na: [\n", fails: "line 5"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := document.One([]byte(tc.file))
			if tc.fails == "" {
				if err != nil || string(got) != tc.want {
					t.Errorf("%s, %v; want %s", got, err, tc.want)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.fails) || got != nil {
				t.Errorf("%s, %v; want %q", got, err, tc.fails)
			}
		})
	}
}

func FuzzOne(f *testing.F) {
	for _, seed := range []string{"a: 1", "---\n---\na: [", "{}\n---\n{}", "--- a\n---\n", "\xef\xbb\xbfa: 1\r\n---\r\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		got, err := document.One(file)
		if (got == nil) == (err == nil) {
			t.Errorf("%q and %v", got, err)
		}
		if errors.Is(err, document.ErrEmpty) && len(file) > 0 && strings.HasPrefix(string(file), "{") && !strings.Contains(string(file), "---") {
			t.Errorf("%q is not empty", file)
		}
	})
}
