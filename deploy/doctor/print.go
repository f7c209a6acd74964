package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
)

// Report is what doctor prints.
type Report struct {
	Findings []Finding `json:"findings"`
	// Unseen says what could not be looked at.
	Unseen []string `json:"unseen,omitempty"`
}

// WriteJSON writes one object.
func (r Report) WriteJSON(w io.Writer) error {
	if r.Findings == nil {
		r.Findings = []Finding{}
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// WriteTable writes a line and an advice for each finding, for a person.
func (r Report) WriteTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, f := range r.Findings {
		about := f.Object
		if about == "" {
			about = "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", f.Severity, f.Check, about, f.Message)
		fmt.Fprintf(table, "\t\t\t  %s\n", f.Advice)
	}
	if len(r.Findings) == 0 {
		fmt.Fprintln(table, "Nothing was found.")
	}
	return table.Flush()
}
