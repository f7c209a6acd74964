package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// kubernetesVersion is what the Kubernetes programs say they are; clients and
// Gatekeeper parse it. It is the version in go.mod.
const (
	kubernetesVersion = "v1.36.3"
	gatekeeperVersion = "v3.23.1"
)

// programs maps the name of each program to its package, as in the tool lines
// of go.mod.
var programs = map[string]string{
	"etcd":                    "go.etcd.io/etcd/server/v3",
	"kube-apiserver":          "k8s.io/kubernetes/cmd/kube-apiserver",
	"kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
	"kube-scheduler":          "k8s.io/kubernetes/cmd/kube-scheduler",
	"kubectl":                 "k8s.io/kubernetes/cmd/kubectl",
	"kwok":                    "sigs.k8s.io/kwok/cmd/kwok",
	"gatekeeper":              "github.com/open-policy-agent/gatekeeper/v3",
	"gator":                   "github.com/open-policy-agent/gatekeeper/v3/cmd/gator",
}

// linkerFlags are the same for every program: the linker ignores an -X for a
// package that is not linked in. One go build can thus make them all.
var linkerFlags = strings.Join([]string{
	"-s", "-w",
	"-X k8s.io/component-base/version.gitVersion=" + kubernetesVersion,
	"-X k8s.io/component-base/version.gitMajor=1",
	"-X k8s.io/component-base/version.gitMinor=36",
	"-X github.com/open-policy-agent/gatekeeper/v3/pkg/version.Version=" + gatekeeperVersion,
}, " ")

// Binaries is the folder of the built programs.
type Binaries string

// Path of a program: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, kubectl, kwok, gatekeeper or gator.
func (b Binaries) Path(program string) string { return filepath.Join(string(b), program) }

// Build returns the folder of the programs and builds those that are missing:
// nothing when all are there, 6 minutes on two quiet cores from empty caches.
// The folder's name is a hash of go.sum and of the recipe, so an upgrade gets
// a folder of its own. Two processes that ask at once build once: the second
// waits on a lock file that the kernel releases when its holder dies.
// Progress goes to log, one line a minute at most.
func Build(ctx context.Context, log io.Writer) (Binaries, error) {
	module, err := moduleDir()
	if err != nil {
		return "", err
	}
	key, err := buildKey(module)
	if err != nil {
		return "", err
	}
	cache := filepath.Join(module, "..", "..", ".cache", "controlplane")
	dir := filepath.Join(cache, key)
	if len(missing(dir)) == 0 {
		return Binaries(dir), nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making the folder of the control plane's programs: %w", err)
	}
	unlock, err := lockFile(ctx, filepath.Join(cache, key+".lock"), log)
	if err != nil {
		return "", err
	}
	defer unlock()
	todo := missing(dir)
	if len(todo) == 0 {
		return Binaries(dir), nil
	}
	if err := buildPrograms(ctx, module, dir, todo, log); err != nil {
		return "", err
	}
	return Binaries(dir), nil
}

// moduleDir is where this module's source stands: the tools are built there.
func moduleDir() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	dir := filepath.Dir(file)
	if !ok || !filepath.IsAbs(file) {
		return "", errors.New("the control plane's source folder is not known: run the tests without -trimpath")
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		return "", fmt.Errorf("the control plane's source folder: %w", err)
	}
	return dir, nil
}

// ModuleDir returns the folder, in the module cache, of a module that this
// module requires, downloading it when it is not there.
func ModuleDir(ctx context.Context, modulePath string) (string, error) {
	module, err := moduleDir()
	if err != nil {
		return "", err
	}
	cmd := goCommand(ctx, module, "list", "-m", "-f", "{{.Dir}}", modulePath)
	out, err := cmd.Output()
	if dir := strings.TrimSpace(string(out)); err == nil && dir != "" {
		return dir, nil
	}
	if out, err := goCommand(ctx, module, "mod", "download", modulePath).CombinedOutput(); err != nil {
		return "", fmt.Errorf("downloading %s: %w\n%s", modulePath, err, out)
	}
	out, err = goCommand(ctx, module, "list", "-m", "-f", "{{.Dir}}", modulePath).Output()
	if err != nil {
		return "", fmt.Errorf("finding the folder of %s: %w", modulePath, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// buildKey hashes all that decides the programs' bytes.
func buildKey(module string) (string, error) {
	sum, err := os.ReadFile(filepath.Join(module, "go.sum"))
	if err != nil {
		return "", fmt.Errorf("reading what the control plane is built from: %w", err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %s\n%s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, linkerFlags)
	h.Write(sum)
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

func missing(dir string) []string {
	var names []string
	for name := range programs {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			names = append(names, name)
		}
	}
	return names
}

func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	// The caller's GOFLAGS (a -race, a -mod, a -tags) must not change what is built.
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0")
	return cmd
}

// buildPrograms makes the programs in a scratch folder beside dir and renames
// each into place, so that what stands in dir is whole.
func buildPrograms(ctx context.Context, module, dir string, names []string, log io.Writer) error {
	scratch, err := os.MkdirTemp(filepath.Dir(dir), "build-*")
	if err != nil {
		return fmt.Errorf("making a scratch folder: %w", err)
	}
	defer os.RemoveAll(scratch)

	args := []string{"build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", linkerFlags, "-o", scratch + string(filepath.Separator)}
	for _, name := range names {
		args = append(args, programs[name])
	}
	start := time.Now()
	fmt.Fprintf(log, "controlplane: building %s; this happens once and takes several minutes\n", strings.Join(names, ", "))
	cmd := goCommand(ctx, module, args...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("building the control plane: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("building the control plane: %w", err)
	}
	var packages atomic.Int64
	finished := make(chan struct{})
	go report(log, start, &packages, finished)
	tail := countPackages(stderr, &packages)
	err = cmd.Wait()
	close(finished)
	if err != nil {
		return fmt.Errorf("building the control plane: %w\n%s", err, tail)
	}
	for _, name := range names {
		if err := os.Rename(filepath.Join(scratch, builtName(programs[name])), filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("keeping the built %s: %w", name, err)
		}
	}
	fmt.Fprintf(log, "controlplane: built in %s\n", time.Since(start).Round(time.Second))
	return nil
}

// builtName is the file name that go build gives to a package's program: the
// last element of its path, or the one before a major version.
func builtName(pkg string) string {
	base := path.Base(pkg)
	if base == "v3" {
		return path.Base(path.Dir(pkg))
	}
	return base
}

// countPackages reads the output of go build -v, one package a line, and
// returns the last lines, which name the error when there is one.
func countPackages(r io.Reader, n *atomic.Int64) string {
	const keep = 40
	var last []string
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		n.Add(1)
		last = append(last, lines.Text())
		if len(last) > keep {
			last = last[1:]
		}
	}
	return strings.Join(last, "\n")
}

func report(log io.Writer, start time.Time, packages *atomic.Int64, finished <-chan struct{}) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-finished:
			return
		case <-tick.C:
			fmt.Fprintf(log, "controlplane: still building after %s, %d packages compiled\n", time.Since(start).Round(time.Second), packages.Load())
		}
	}
}

// lockFile takes an exclusive lock on path, waiting for it while ctx lasts.
func lockFile(ctx context.Context, path string, log io.Writer) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the build's lock: %w", err)
	}
	told := false
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		if !told {
			fmt.Fprintln(log, "controlplane: another process builds the control plane; waiting for it")
			told = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("waiting for another build: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// BuildProgram builds a main package of another module, such as the one under
// test, into this module's cache folder and returns the program's path. dir is
// the module's folder, pkg the package as go build takes it. go build's own
// cache makes the second call cheap.
func BuildProgram(ctx context.Context, log io.Writer, dir, pkg string, flags ...string) (string, error) {
	module, err := moduleDir()
	if err != nil {
		return "", err
	}
	out := filepath.Join(module, "..", "..", ".cache", "e2e")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", fmt.Errorf("making the folder of the program under test: %w", err)
	}
	unlock, err := lockFile(ctx, filepath.Join(out, "lock"), log)
	if err != nil {
		return "", err
	}
	defer unlock()
	program := filepath.Join(out, path.Base(pkg))
	cmd := goCommand(ctx, dir, append(append([]string{"build", "-buildvcs=false"}, flags...), "-o", program, pkg)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", pkg, err, bytes.TrimSpace(out))
	}
	return program, nil
}
