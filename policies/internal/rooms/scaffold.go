package rooms

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"
)

//go:embed scaffold
var scaffold embed.FS

// New makes the room of a new constraint, made on the given day, and generates
// what follows from it. It gives the room's folder. A name that is no name, or taken, is an error.
func New(root, name string, day time.Time) (string, error) {
	if !nameForm.MatchString(name) {
		return "", fmt.Errorf("%q is not lower-case words joined by hyphens", name)
	}
	dir := filepath.Join(root, "policies", string(constraints), name)
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // source files are for everyone to read
		if errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("%s is there already", dir)
		}
		return "", err
	}
	words := strings.Split(name, "-")
	names := map[string]string{
		"Name":    name,
		"Package": strings.Join(words, "_"),
		"Title":   sentence(strings.Join(words, " ")),
		"Kind":    camelCase(words),
		"Created": day.Format(time.DateOnly),
	}
	err := fs.WalkDir(scaffold, "scaffold", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(dir, strings.TrimSuffix(strings.TrimPrefix(path, "scaffold"), ".tmpl"))
		if entry.IsDir() {
			return os.MkdirAll(target, 0o755) //nolint:gosec // source files are for everyone to read
		}
		source, err := scaffold.ReadFile(path)
		if err != nil {
			return err
		}
		parsed, err := template.New(path).Delims("<<", ">>").Option("missingkey=error").Parse(string(source))
		if err != nil {
			return err
		}
		var out bytes.Buffer
		if err := parsed.Execute(&out, names); err != nil {
			return err
		}
		return os.WriteFile(target, out.Bytes(), 0o644) //nolint:gosec // source files are for everyone to read
	})
	if err != nil {
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	return dir, Generate(root)
}

func camelCase(words []string) string {
	var out strings.Builder
	for _, word := range words {
		out.WriteString(sentence(word))
	}
	return out.String()
}
