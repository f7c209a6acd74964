package registrytest

//go:generate go run ./table -o ../../docs/registries.md

import (
	"fmt"
	"strings"
)

const pageHead = `# What registries do, and what Archkeeper answers

<!-- Generated from tests/registrytest. Change the cases there and run "make generate". -->

Every line below is a test. It runs against a real HTTP server that behaves as the line says, and demands
the answer, within the deadline, in bounded memory.

An answer is what ` + "`archkeeper inspect`" + ` prints: platforms, or an error class. *Content only* places no
constraint on where a pod runs. Classes in **bold** are durable: asking again gives the same. The others are
worth another try, and the provider never gives them to Gatekeeper as an answer.

How few requests it takes:

| what is asked | cold | again |
|---|---|---|
| an index by tag, anonymous or with Basic | 1 | 0, or 1 HEAD to confirm it |
| the same with bearer tokens | 3, or 2 where the token service is known | 0, or 1 HEAD |
| a single image | 1 more, for its config | 0, or 1 HEAD |
| a digest that was read before | 0 | 0 |

`

// Page gives docs/registries.md.
func Page() []byte {
	var b strings.Builder
	b.WriteString(pageHead)
	group := ""
	for _, c := range Cases() {
		if c.Group != group {
			if group != "" {
				b.WriteString("\n")
			}
			group = c.Group
			fmt.Fprintf(&b, "## %s\n\n| the registry | the answer |\n|---|---|\n", group)
		}
		want := c.Want
		if c.Then != nil {
			want = c.ThenWant
		}
		fmt.Fprintf(&b, "| %s | %s |\n", c.Name, want)
	}
	return []byte(b.String())
}

// String gives the answer as the page shows it.
func (w Want) String() string {
	if w.Class != "" {
		text := "`" + string(w.Class) + "`"
		if !w.Class.Retryable() {
			text = "**" + text + "**"
		}
		if w.Status >= 400 {
			text += fmt.Sprintf(", HTTP %d", w.Status)
		}
		return text
	}
	text := strings.Join(w.Platforms, ", ")
	if w.ContentOnly {
		text = "content only"
	}
	if w.Warns {
		text += ", with a warning"
	}
	if w.Source != "" {
		text += ", by " + w.Source
	}
	if len(w.Lines) > 0 {
		methods := make([]string, len(w.Lines))
		for n, line := range w.Lines {
			methods[n], _, _ = strings.Cut(line, " ")
		}
		text += " (" + strings.Join(methods, ", ") + ")"
	}
	return text
}
