package document_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

func TestAll(t *testing.T) {
	for name, tc := range map[string]struct {
		file  string
		want  []string // "<line> <JSON>"
		fails string
	}{
		"YAML":                               {file: "a: 1\n", want: []string{`1 {"a":1}`}},
		"several documents":                  {file: "a: 1\n---\nb: 2\n---\n\n# about c\nc: 3\n", want: []string{`1 {"a":1}`, `3 {"b":2}`, `7 {"c":3}`}},
		"several that are equal":             {file: "a: 1\n---\na: 1\n", want: []string{`1 {"a":1}`, `3 {"a":1}`}},
		"documents without content":          {file: "# nothing\n---\n---\na: 1\n---\n", want: []string{`4 {"a":1}`}},
		"nothing":                            {file: ""},
		"JSON":                               {file: "{\"a\":\n 1}\n", want: []string{"1 {\"a\":\n 1}"}},
		"JSON values behind each other":      {file: "{\"a\":1}\n\n{\"b\":2}{\"c\":3}", want: []string{`1 {"a":1}`, `3 {"b":2}`, `3 {"c":3}`}},
		"JSON and YAML":                      {file: "---\n{\"a\":1}\n---\nb: 2\n", want: []string{`2 {"a":1}`, `4 {"b":2}`}},
		"YAML in braces":                     {file: "{a: 1}\n", want: []string{`1 {"a":1}`}},
		"broken, in the third document":      {file: "a: 1\n---\nb: 2\n---\nc: [\n", fails: "line 5"},
		"a key twice in the second document": {file: "a: 1\n---\nb: 2\nb: 3\n", fails: `line 4: key "b" already set`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := document.All([]byte(tc.file))
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) || got != nil {
					t.Errorf("%v, %v; want %q", got, err, tc.fails)
				}
				return
			}
			var lines []string
			for _, d := range got {
				lines = append(lines, fmt.Sprint(d.Line, " ", string(d.JSON)))
			}
			if err != nil || !slices.Equal(lines, tc.want) {
				t.Errorf("%q, %v; want %q", lines, err, tc.want)
			}
		})
	}
}

func FuzzAll(f *testing.F) {
	for _, seed := range []string{"a: 1", "---\n---\na: [", "{}\n---\n{}{}", "--- a\n---\n", "\xef\xbb\xbfa: 1\r\n---\r\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		all, err := document.All(file)
		if err != nil && all != nil {
			t.Errorf("%v and %v", all, err)
		}
		lines := 1 + strings.Count(string(file), "\n")
		before := 1
		for _, d := range all {
			if !json.Valid(d.JSON) {
				t.Errorf("%q is no JSON", d.JSON)
			}
			if d.Line < before || d.Line > lines {
				t.Errorf("line %d behind line %d, of %d", d.Line, before, lines)
			}
			before = d.Line
		}
	})
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
