package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// logFlags say how a service logs. Tools that a person runs do not log.
type logFlags struct {
	level, format string
}

func (f *logFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.level, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&f.format, "log-format", "text", "text or json")
}

// open makes the logger and gives its level, which may be changed later.
func (f *logFlags) open(out io.Writer) (*slog.Logger, *slog.LevelVar, error) {
	level := new(slog.LevelVar)
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return nil, nil, fmt.Errorf("--log-level %q is none of debug, info, warn, error", f.level)
	}
	options := &slog.HandlerOptions{Level: level}
	switch f.format {
	case "text":
		return slog.New(slog.NewTextHandler(out, options)), level, nil
	case "json":
		return slog.New(slog.NewJSONHandler(out, options)), level, nil
	}
	return nil, nil, fmt.Errorf("--log-format %q is none of text, json", f.format)
}
