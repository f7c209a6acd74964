package main

import (
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/archkeeper/archkeeper/internal/demo"
)

func newDemoCommand(std streams) *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See it work: a registry, the provider and a policy in one process",
		Long: `Demo starts a registry with a few images and the provider beside it, both on the
loopback interface, and prints what the provider answers about each image, what a
constraint says of two pods, and curl lines to try while it runs. It needs no
cluster, no configuration and no network. Ctrl-C ends it.`,
		GroupID: groupAsk,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(std.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
			return demo.Run(cmd.Context(), demo.Options{Out: std.out, Log: log, Once: once})
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "print and exit")
	return cmd
}
