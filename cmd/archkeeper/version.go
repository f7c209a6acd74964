package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker: -X main.version=v1.2.3.
var version = "devel"

func newVersionCommand(std streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  archkeeper version\n  archkeeper version -o json",
		GroupID: groupOperate,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			facts := struct {
				Version  string `json:"version"`
				Revision string `json:"revision,omitempty"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{version, revision(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			switch output {
			case "":
				_, err := fmt.Fprintf(std.out, "archkeeper %s (%s, %s)\n", facts.Version, facts.Go, facts.Platform)
				return err
			case "json":
				return json.NewEncoder(std.out).Encode(facts)
			}
			return fmt.Errorf("unknown output %q: it is json, or not given", output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, or nothing for one line of text")
	return cmd
}

// revision gives the commit that the binary was built from; empty when unknown.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			return setting.Value
		}
	}
	return ""
}
