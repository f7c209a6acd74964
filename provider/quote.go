package provider

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// QuoteLimit is how many bytes of a text Quote shows.
const QuoteLimit = 96

// Quote makes text that others wrote safe to put into a message: in double
// quotes, every control and non-ASCII character escaped, cut after QuoteLimit
// bytes with "..." behind the closing quote.
func Quote(text string) string {
	if len(text) <= QuoteLimit {
		return strconv.QuoteToASCII(text)
	}
	cut := QuoteLimit
	for cut > QuoteLimit-utf8.UTFMax && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return strconv.QuoteToASCII(text[:cut]) + "..."
}

// Printable gives text as it is when it has only printable ASCII characters and
// is not longer than QuoteLimit; else Quote's form. It is for texts that others
// made partly from what they read, such as errors of a parser.
func Printable(text string) string {
	if len(text) > QuoteLimit || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		return Quote(text)
	}
	return text
}
