package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

//go:generate go run . docs ../../docs/cli

// newDocsCommand writes the pages of docs/cli from the commands themselves. It
// is hidden: nobody needs it but this repository.
func newDocsCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "docs DIR",
		Short:  "Write the command line reference",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.RemoveAll(args[0]); err != nil {
				return err
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // pages for everyone to read
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // no date: the pages change with the commands alone
			if err := doc.GenMarkdownTree(root, args[0]); err != nil {
				return fmt.Errorf("write the reference: %w", err)
			}
			return nil
		},
	}
}
