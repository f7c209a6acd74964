package importmode

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteJSON writes the report as one indented JSON object.
func (r AuditReport) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(r)
}

// WriteTable writes the findings as a table, then the estimate.
func (r AuditReport) WriteTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(r.Findings) > 0 {
		fmt.Fprintln(table, "FINDING\tOBJECT\tMESSAGE")
	}
	for _, f := range r.Findings {
		message := f.Message
		if len(f.Pods) > 0 {
			message += ": " + strings.Join(f.Pods, ", ")
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.Kind, f.Object, message)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(r.Findings) > 0 {
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "cluster mode %s, nodes %s; switching Legacy tags to %s would add %d Image objects, about %d KiB (%d tags; %d could not be inspected)\n",
		r.ClusterMode, orNone(r.NodeArchitectures), PreserveOriginal, r.Estimate.Images, r.Estimate.Bytes>>10, r.Estimate.Tags, r.Estimate.Undetermined)
	return err
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
