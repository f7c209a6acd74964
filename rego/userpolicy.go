package rego

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/bundle"
	"sigs.k8s.io/yaml"
)

// Limits of a user policy: it is code that an administrator wrote, not data.
const (
	maxPolicyFile  = 1 << 20
	maxPolicyTotal = 16 << 20
	maxPolicyFiles = 512
)

// policy is a user's modules and data, as read.
type policy struct {
	modules map[string]string
	data    map[string]any
	sum     [sha256.Size]byte
}

// userSource reads a user policy from its path and knows which one it saw last.
type userSource struct {
	path string
	seen [sha256.Size]byte
}

// look reads the policy; changed is false when it is the one that was seen last,
// so that a broken one is compiled once and not at every look.
func (s *userSource) look() (p policy, changed bool, err error) {
	info, err := os.Stat(s.path)
	if err != nil {
		return policy{}, false, err
	}
	if info.IsDir() {
		p, err = readDirectory(s.path)
	} else {
		p, err = readBundle(s.path)
	}
	if err != nil {
		return policy{}, false, err
	}
	changed = p.sum != s.seen
	s.seen = p.sum
	return p, changed, nil
}

// readDirectory reads all .rego files (tests left out), data.json and data.yaml
// below a directory. Names that start with ".." are the kubelet's means of
// swapping a mounted ConfigMap, and hold each file a second time.
func readDirectory(root string) (policy, error) {
	p := policy{modules: map[string]string{}, data: map[string]any{}}
	sum := sha256.New()
	total, files := 0, 0
	var walk func(dir string) error
	walk = func(dir string) error {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			name := entry.Name()
			full := filepath.Join(dir, name)
			if strings.HasPrefix(name, "..") {
				continue
			}
			info, err := os.Stat(full) // follows the links of a mounted ConfigMap
			if err != nil {
				return err
			}
			if info.IsDir() {
				if entry.IsDir() { // a linked directory may lead back here
					if err := walk(full); err != nil {
						return err
					}
				}
				continue
			}
			isModule := strings.HasSuffix(name, ".rego") && !strings.HasSuffix(name, "_test.rego")
			isData := name == "data.json" || name == "data.yaml" || name == "data.yml"
			if !isModule && !isData {
				continue
			}
			content, err := readLimited(full, maxPolicyFile)
			if err != nil {
				return err
			}
			if total, files = total+len(content), files+1; total > maxPolicyTotal || files > maxPolicyFiles {
				return fmt.Errorf("%s holds more than %d files or %d bytes", root, maxPolicyFiles, maxPolicyTotal)
			}
			one := sha256.Sum256(content)
			fmt.Fprintf(sum, "%s\x00%x\x00", full, one)
			if isModule {
				p.modules[full] = string(content)
				continue
			}
			below, err := filepath.Rel(root, dir)
			if err != nil {
				return err
			}
			if err := mergeData(p.data, below, content); err != nil {
				return fmt.Errorf("%s: %w", full, err)
			}
		}
		return nil
	}
	if err := walk(root); err != nil {
		return policy{}, err
	}
	if len(p.modules) == 0 {
		return policy{}, fmt.Errorf("%s holds no .rego file", root)
	}
	p.sum = [sha256.Size]byte(sum.Sum(nil))
	return p, nil
}

// mergeData puts a data file at the path of its folder, as OPA does.
func mergeData(data map[string]any, folder string, content []byte) error {
	var value map[string]any
	if err := yaml.Unmarshal(content, &value); err != nil {
		return err
	}
	at := data
	if folder != "." {
		for _, part := range strings.Split(filepath.ToSlash(folder), "/") {
			next, ok := at[part].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[part] = next
			}
			at = next
		}
	}
	for key, v := range value {
		if _, taken := at[key]; taken {
			return fmt.Errorf("key %q is given twice", key)
		}
		at[key] = v
	}
	return nil
}

// readBundle reads an OPA bundle. Its signature, if it has one, is not checked: who
// can replace the file can replace the binary.
func readBundle(file string) (policy, error) {
	content, err := readLimited(file, maxPolicyTotal)
	if err != nil {
		return policy{}, err
	}
	b, err := bundle.NewReader(bytes.NewReader(content)).
		WithSizeLimitBytes(maxPolicyFile).
		WithSkipBundleVerification(true).
		WithProcessAnnotations(false).
		Read()
	if err != nil {
		return policy{}, fmt.Errorf("reading the bundle %s: %w", file, err)
	}
	p := policy{modules: map[string]string{}, sum: sha256.Sum256(content)}
	for _, m := range b.Modules {
		if !strings.HasSuffix(m.Path, "_test.rego") {
			p.modules[m.Path] = string(m.Raw)
		}
	}
	if len(p.modules) == 0 {
		return policy{}, fmt.Errorf("the bundle %s holds no .rego file", file)
	}
	raw, err := json.Marshal(b.Data)
	if err != nil {
		return policy{}, fmt.Errorf("reading the data of the bundle %s: %w", file, err)
	}
	if err := json.Unmarshal(raw, &p.data); err != nil {
		return policy{}, fmt.Errorf("reading the data of the bundle %s: %w", file, err)
	}
	return p, nil
}

func readLimited(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if int64(len(content)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, limit)
	}
	return slices.Clip(content), nil
}
