package mirrors

import (
	"bytes"
	"strconv"
	"strings"
)

// RegistriesConf writes the Config as version 2 of registries.conf(5): sources
// with digest mirrors, then those with tag mirrors alone, then blocked scopes,
// then insecure ones, each group sorted; keys in a fixed order. Nothing at all
// is written when there is nothing to say. The key of search registries is
// absent when there are none: an empty list in a drop-in would wipe the node's.
func (r *Result) RegistriesConf() []byte {
	var out bytes.Buffer
	if len(r.Config.search) > 0 {
		out.WriteString("unqualified-search-registries = [")
		for i, host := range r.Config.search {
			if i > 0 {
				out.WriteString(", ")
			}
			out.WriteString(tomlString(host))
		}
		out.WriteString("]\n")
	}
	for _, prefix := range r.emission {
		if out.Len() > 0 {
			out.WriteByte('\n')
		}
		r.Config.entries[r.Config.byPrefix[prefix]].write(&out)
	}
	return out.Bytes()
}

func (e Entry) write(out *bytes.Buffer) {
	out.WriteString("[[registry]]\n")
	if e.Location == "" {
		out.WriteString("prefix = " + tomlString(e.Prefix) + "\n")
	} else {
		out.WriteString("location = " + tomlString(e.Location) + "\n")
	}
	writeFlag(out, "insecure", e.Insecure)
	writeFlag(out, "blocked", e.Blocked)
	for _, m := range e.Mirrors {
		out.WriteString("\n[[registry.mirror]]\nlocation = " + tomlString(m.Location) + "\n")
		writeFlag(out, "insecure", m.Insecure)
		out.WriteString("pull-from-mirror = " + tomlString(string(m.Pull)) + "\n")
	}
}

func writeFlag(out *bytes.Buffer, key string, set bool) {
	if set {
		out.WriteString(key + " = true\n")
	}
}

// tomlString writes a basic string. Scopes are ASCII without control
// characters, of which Go and TOML make the same.
func tomlString(text string) string {
	if strings.ContainsAny(text, "\"\\") {
		return strconv.QuoteToASCII(text)
	}
	return `"` + text + `"`
}
