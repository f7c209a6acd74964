package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheChartDescribesTheValuesThatItHas(t *testing.T) {
	folder := filepath.Join("..", chart)
	values, err := os.ReadFile(filepath.Join(folder, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	readme, schema, err := describe(values)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]byte{"README.md": readme, "values.schema.json": schema} {
		got, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s is out of date: run make generate", name)
		}
	}
}

func TestEveryValueIsDescribed(t *testing.T) {
	values, err := os.ReadFile(filepath.Join("..", chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	readme, _, err := describe(values)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(readme)) {
		if strings.HasPrefix(line, "| `") && strings.HasSuffix(strings.TrimSpace(line), "|  |") {
			t.Errorf("no description: %s", line)
		}
	}
}

func TestASchemaThatIsNoJSONNamesItsValue(t *testing.T) {
	_, _, err := describe([]byte("a:\n  # -- text\n  # @schema {\n  b: 1\n"))
	if err == nil || !strings.Contains(err.Error(), "a.b") {
		t.Errorf("got %v, want an error that names a.b", err)
	}
}
