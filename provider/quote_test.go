package provider

import (
	"strings"
	"testing"
)

func TestQuote(t *testing.T) {
	for sentence, row := range map[string]struct{ text, want string }{
		"plain text stands in quotes":           {"abc", `"abc"`},
		"the empty text too":                    {"", `""`},
		"control characters are escaped":        {"a\x1b[31m\n", `"a\x1b[31m\n"`},
		"what is not ASCII is escaped":          {"é", `"\u00e9"`},
		"broken UTF-8 is escaped":               {"\xff", `"\xff"`},
		"a text of the limit is whole":          {strings.Repeat("a", QuoteLimit), `"` + strings.Repeat("a", QuoteLimit) + `"`},
		"a longer text is cut":                  {strings.Repeat("a", 1<<20), `"` + strings.Repeat("a", QuoteLimit) + `"...`},
		"a character is not cut in two":         {strings.Repeat("a", QuoteLimit-1) + "é", `"` + strings.Repeat("a", QuoteLimit-1) + `"...`},
		"broken UTF-8 at the cut does not hang": {strings.Repeat("\x80", QuoteLimit+9), `"` + strings.Repeat(`\x80`, QuoteLimit-4) + `"...`},
	} {
		t.Run(sentence, func(t *testing.T) {
			if got := Quote(row.text); got != row.want {
				t.Errorf("Quote gives %s, want %s", got, row.want)
			}
		})
	}
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		`unknown field "x"`:               `unknown field "x"`,
		"a\x1b[31m":                       `"a\x1b[31m"`,
		"é":                               `"\u00e9"`,
		strings.Repeat("a", QuoteLimit+1): `"` + strings.Repeat("a", QuoteLimit) + `"...`,
	} {
		if got := Printable(text); got != want {
			t.Errorf("Printable gives %s, want %s", got, want)
		}
	}
}
