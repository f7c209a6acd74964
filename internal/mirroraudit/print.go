package mirroraudit

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteJSON writes findings as one array.
func WriteJSON(w io.Writer, findings []Finding) error {
	if findings == nil {
		findings = []Finding{}
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(findings)
}

// WriteTable writes findings for people, and below them, for each mirror that
// differs, a command that mends it.
func WriteTable(w io.Writer, findings []Finding) error {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "IMAGE\tMIRROR\tPULL\tSTATUS\tLACKING\tMESSAGE")
	for _, f := range findings {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", f.Image, dash(f.Mirror), dash(strings.Join(f.Pull, ",")), f.Status, dash(strings.Join(f.Lacking, ",")), f.Message)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	headed := false
	for _, f := range findings {
		if len(f.Commands) == 0 {
			continue
		}
		if !headed {
			headed = true
			fmt.Fprintln(w, "\nTo mend:")
		}
		if _, err := fmt.Fprintln(w, "  "+f.Commands[0]); err != nil {
			return err
		}
	}
	return nil
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
