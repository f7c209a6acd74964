// Package bench measures Archkeeper beside its peers, in one run and on the
// same machine. It is a module of its own: the peers are no part of the product.
//
//	make bench
//	cd tests/bench && go test -run '^$' -bench Cold -count 6 . | tee new.txt && benchstat new.txt
package bench

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/types"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/reach"
	"github.com/archkeeper/archkeeper/provider/registry"
	"github.com/archkeeper/archkeeper/tests/registrytest"
)

const (
	repositories = 300                   // of one host, one tag each
	latency      = 20 * time.Millisecond // of each request
	atATime      = 64
)

// coldRegistry is a registry that wants a bearer token for each repository.
func coldRegistry(b *testing.B) (r *registrytest.Registry, images []string) {
	b.Helper()
	r = registrytest.New()
	b.Cleanup(r.Close)
	r.Bearer(registrytest.Tokens{Anonymous: true})
	for n := range repositories {
		repository := fmt.Sprintf("team-%d/app", n)
		r.PutIndex(repository, "v1", "linux/amd64", "linux/arm64")
		images = append(images, r.Host()+"/"+repository+":v1")
	}
	r.Delay(latency)
	return r, images
}

// each does the work for all images, atATime of them together.
func each(images []string, work func(image string) error) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failure error
	places := make(chan struct{}, atATime)
	for _, image := range images {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			if err := work(image); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failure = fmt.Errorf("%s: %w", image, err)
			}
		})
	}
	wg.Wait()
	return failure
}

// A peer looks all images up, with nothing kept from before.
type peer func(ctx context.Context, r *registrytest.Registry, images []string) error

func archkeeper(ctx context.Context, r *registrytest.Registry, images []string) error {
	connections, err := reach.New(reach.Config{PlainHTTPHosts: []string{r.Host()}})
	if err != nil {
		return err
	}
	defer connections.CloseIdleConnections()
	i, err := registry.New(registry.Options{Reach: connections})
	if err != nil {
		return err
	}
	defer i.Close()
	return each(images, func(image string) error {
		if a := i.Inspect(ctx, []provider.Query{{Image: image}})[0]; a.Err != nil {
			return a.Err
		}
		return nil
	})
}

func remoteGet(ctx context.Context, _ *registrytest.Registry, images []string) error {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = atATime
	defer transport.CloseIdleConnections()
	return each(images, func(image string) error {
		ref, err := name.ParseReference(image, name.Insecure)
		if err != nil {
			return err
		}
		got, err := remote.Get(ref, remote.WithContext(ctx), remote.WithTransport(transport))
		if err != nil {
			return err
		}
		index, err := got.ImageIndex()
		if err != nil {
			return err
		}
		_, err = index.IndexManifest()
		return err
	})
}

func containersImage(ctx context.Context, _ *registrytest.Registry, images []string) error {
	system := &types.SystemContext{
		DockerInsecureSkipTLSVerify: types.OptionalBoolTrue, SystemRegistriesConfPath: os.DevNull, SystemRegistriesConfDirPath: "testdata/none",
		AuthFilePath: "testdata/auth.json",
	}
	return each(images, func(image string) error {
		ref, err := docker.ParseReference("//" + image)
		if err != nil {
			return err
		}
		source, err := ref.NewImageSource(ctx, system)
		if err != nil {
			return err
		}
		defer source.Close() //nolint:errcheck // nothing was written
		_, _, err = source.GetManifest(ctx, nil)
		return err
	})
}

// BenchmarkCold looks up 300 repositories of one host, 64 at a time, where
// every request takes 20 ms and tokens are needed.
func BenchmarkCold(b *testing.B) {
	for _, p := range []struct {
		name string
		look peer
	}{{"archkeeper", archkeeper}, {"remote.Get", remoteGet}, {"containers-image", containersImage}} {
		b.Run(p.name, func(b *testing.B) {
			r, images := coldRegistry(b)
			for b.Loop() {
				if err := p.look(b.Context(), r, images); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*repositories)/b.Elapsed().Seconds(), "images/s")
			b.ReportMetric(float64(len(r.Requests()))/float64(b.N*repositories), "requests/image")
		})
	}
}

// BenchmarkColdRatio looks up the same by turns, so that what else the machine
// does meets all alike, and prints how many times as fast as each peer we are.
func BenchmarkColdRatio(b *testing.B) {
	r, images := coldRegistry(b)
	var took [3]time.Duration
	for b.Loop() {
		for n, look := range []peer{archkeeper, remoteGet, containersImage} {
			started := time.Now()
			if err := look(b.Context(), r, images); err != nil {
				b.Fatal(err)
			}
			took[n] += time.Since(started)
		}
	}
	b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "x-remote.Get")
	b.ReportMetric(took[2].Seconds()/took[0].Seconds(), "x-containers-image")
}
