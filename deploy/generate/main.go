// Command generate writes what the chart says of its own values: README.md and
// values.schema.json, from the comments of values.yaml, and the policies that
// the chart can install, from policies/; and docs/metrics.md, from the sources. It is run by `go generate`, from the
// folder deploy.
//
// A comment line "# -- text" describes the value below it, and goes on in the
// plain comment lines that follow. A line "# @schema {json}" adds to the schema
// of that value.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

const chart = "charts/archkeeper"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run() error {
	text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return err
	}
	readme, schema, err := describe(text)
	if err != nil {
		return fmt.Errorf("values.yaml: %w", err)
	}
	for name, data := range map[string][]byte{"README.md": readme, "values.schema.json": schema} {
		if err := os.WriteFile(filepath.Join(chart, name), data, 0o644); err != nil { //nolint:gosec // documentation is for everybody
			return err
		}
	}
	page, err := metricsPage("..")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join("..", "docs", "metrics.md"), page, 0o644); err != nil { //nolint:gosec // as above
		return err
	}
	return copyTemplates(filepath.Join("..", "policies", "constraints"), filepath.Join(chart, "files", "constraints"))
}

// copyTemplates gives the chart the constraint templates, since a chart reads
// no file outside of itself.
func copyTemplates(from, to string) error {
	found, err := filepath.Glob(filepath.Join(from, "*", "template.yaml"))
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("no template.yaml below %s", from)
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil { //nolint:gosec // as above
		return err
	}
	for _, path := range found {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := filepath.Base(filepath.Dir(path)) + ".yaml"
		if err := os.WriteFile(filepath.Join(to, name), data, 0o644); err != nil { //nolint:gosec // as above
			return err
		}
	}
	return nil
}

// row is a line of the table of values.
type row struct{ path, kind, value, text string }

// describe gives the chart's README and schema for its values.
func describe(values []byte) (readme, schema []byte, err error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(values, &doc); err != nil {
		return nil, nil, err
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, nil, fmt.Errorf("want one mapping")
	}
	var rows []row
	root, err := mapping(doc.Content[0], "", &rows)
	if err != nil {
		return nil, nil, err
	}
	root["$schema"] = "https://json-schema.org/draft-07/schema#"
	root["title"] = "Values of the Archkeeper chart"
	// Values that Helm itself adds to a chart that is a dependency.
	root["properties"].(map[string]any)["global"] = map[string]any{"type": "object"} //nolint:forcetypeassert // mapping made it
	schema, err = json.MarshalIndent(root, "", "  ")
	if err != nil {
		return nil, nil, err
	}
	var out bytes.Buffer
	out.WriteString(`# Archkeeper chart

Installs the provider, the controllers and, when asked, the admission webhook, policies, node agents and monitoring.

    helm install archkeeper deploy/charts/archkeeper -n archkeeper --create-namespace

Nothing gates a pod until ` + "`admission.enabled` or `policies.schedulingGate`" + ` is set. See [installing](../../../docs/install.md).

## Values

| value | type | default | what it does |
|---|---|---|---|
`)
	for _, r := range rows {
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", r.path, r.kind, r.value, strings.ReplaceAll(r.text, "|", `\|`))
	}
	return out.Bytes(), append(schema, '\n'), nil
}

// mapping gives the schema of a mapping, and a row for each described value.
func mapping(node *yaml.Node, prefix string, rows *[]row) (map[string]any, error) {
	properties := map[string]any{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		path := key.Value
		if prefix != "" {
			path = prefix + "." + key.Value
		}
		text, extra, err := comment(key.HeadComment)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		described := text != ""
		property := map[string]any{"type": kind(value)}
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 && !described {
			if property, err = mapping(value, path, rows); err != nil {
				return nil, err
			}
		} else {
			*rows = append(*rows, row{path, kind(value), inline(value), text})
		}
		if described {
			property["description"] = text
		}
		for k, v := range extra {
			property[k] = v
		}
		properties[key.Value] = property
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}, nil
}

// comment gives the description and the schema that a comment holds.
func comment(head string) (text string, schema map[string]any, err error) {
	var words []string
	within := false
	for line := range strings.Lines(head) {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#"))
		if rest, ok := strings.CutPrefix(line, "@schema "); ok {
			if err := json.Unmarshal([]byte(rest), &schema); err != nil {
				return "", nil, fmt.Errorf("@schema: %w", err)
			}
			continue
		}
		if rest, ok := strings.CutPrefix(line, "-- "); ok {
			within, words = true, []string{rest}
			continue
		}
		if within && line != "" {
			words = append(words, line)
		}
	}
	return strings.Join(words, " "), schema, nil
}

func kind(node *yaml.Node) string {
	switch {
	case node.Kind == yaml.MappingNode:
		return "object"
	case node.Kind == yaml.SequenceNode:
		return "array"
	case node.Tag == "!!bool":
		return "boolean"
	case node.Tag == "!!int":
		return "integer"
	}
	return "string"
}

// inline writes a default in one line of a table.
func inline(node *yaml.Node) string {
	var value any
	if err := node.Decode(&value); err != nil {
		return ""
	}
	text, err := json.Marshal(value)
	if err != nil {
		return ""
	}
	return "`" + strings.ReplaceAll(string(text), "|", `\|`) + "`"
}
