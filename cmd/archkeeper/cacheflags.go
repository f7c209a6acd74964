package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/archkeeper/archkeeper/provider/cache"
)

// cacheFlags say where answers are kept beside the memory of the process.
type cacheFlags struct {
	mebibytes int64
	file      string
	shared    string
	sharedKey string
}

func (f *cacheFlags) add(flags *pflag.FlagSet) {
	flags.Int64Var(&f.mebibytes, "cache-size", cache.DefaultMaxBytes>>20, "memory for answers, in `MiB`")
	flags.StringVar(&f.file, "cache-file", "", "`FILE` that keeps answers across restarts; its folder must be there")
	flags.StringVar(&f.shared, "shared-cache", "", "`URL` of a Redis or Valkey that replicas share, redis://[user:password@]host[:port][/database]; it is given what anonymous callers may know")
	flags.StringVar(&f.sharedKey, "shared-cache-key-file", "", "`FILE` of keys for --shared-cache, one a line, of 32 characters or more: the first signs, and only what one of them signed is believed")
}

// open makes the cache and its tiers. done writes what waits and closes them.
func (f *cacheFlags) open(log *slog.Logger, metrics prometheus.Registerer) (c *cache.Cache, done func(), err error) {
	if f.mebibytes < 1 || f.mebibytes > 1<<20 {
		return nil, nil, fmt.Errorf("--cache-size %d is not between 1 and %d", f.mebibytes, 1<<20)
	}
	if f.sharedKey != "" && f.shared == "" {
		return nil, nil, errors.New("--shared-cache-key-file is of no use without --shared-cache")
	}
	options := cache.Options{MaxBytes: f.mebibytes << 20}
	var closers []func() error
	done = func() {
		var failed []error
		for _, each := range closers {
			failed = append(failed, each())
		}
		if err := errors.Join(failed...); err != nil {
			log.Warn("closing the cache", "error", err)
		}
	}
	if f.file != "" {
		if options.Store, err = cache.OpenStore(cache.StoreOptions{Path: f.file, Log: log}); err != nil {
			return nil, nil, err
		}
		closers = append(closers, options.Store.Close)
	}
	if f.shared != "" {
		if options.Shared, err = cache.OpenShared(cache.SharedOptions{URL: f.shared, KeyFile: f.sharedKey, Log: log, Metrics: metrics}); err != nil {
			done()
			return nil, nil, err
		}
		closers = append(closers, options.Shared.Close)
	}
	return cache.New(options), done, nil
}
