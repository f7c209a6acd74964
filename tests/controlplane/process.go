package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Program says how to run a process beside the cluster.
type Program struct {
	// Name of the process and of its log file; one of its own in the cluster.
	Name string
	// Path of the binary, and its arguments.
	Path string
	Args []string
	// Env is added to a small environment of the cluster's own (PATH, HOME).
	Env []string
	// Ready is polled after the start until it returns nil. Nil means ready at
	// once.
	Ready func(ctx context.Context) error
	// Grace is how long Stop waits between SIGTERM and SIGKILL; 10 s when zero.
	Grace time.Duration
}

// Process is a program that runs, or ran, for a cluster.
type Process struct {
	program Program
	starter *starter
	home    string
	logPath string

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
	err    error
}

// errNotRunning is what Stop and its kin return for a process that has ended
// by itself.
var errNotRunning = errors.New("not running")

// starter starts processes from one thread that lives as long as they do: the
// kernel sends a child's parent-death signal when the thread, not the process,
// that started it ends.
type starter struct {
	requests chan func()
	closed   chan struct{}
	once     sync.Once
}

func newStarter() *starter {
	s := &starter{requests: make(chan func()), closed: make(chan struct{})}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this function
		for {
			select {
			case f := <-s.requests:
				f()
			case <-s.closed:
				return
			}
		}
	}()
	return s
}

// errEnded is returned for a start after the cluster's end.
var errEnded = errors.New("the cluster has ended")

func (s *starter) start(cmd *exec.Cmd) error {
	done := make(chan error, 1)
	select {
	case s.requests <- func() { done <- cmd.Start() }:
		return <-done
	case <-s.closed:
		return errEnded
	}
}

// close ends the thread, and with it whatever it has started.
func (s *starter) close() { s.once.Do(func() { close(s.closed) }) }

// Start runs the program again after Stop or Kill, with the same arguments,
// and waits until it is ready. The log goes on in the same file.
func (p *Process) Start(ctx context.Context) error {
	p.mu.Lock()
	if p.cmd != nil && !isClosed(p.exited) {
		p.mu.Unlock()
		return fmt.Errorf("starting %s: it runs already", p.program.Name)
	}
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		p.mu.Unlock()
		return fmt.Errorf("opening the log of %s: %w", p.program.Name, err)
	}
	cmd := exec.Command(p.program.Path, p.program.Args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.home, "TMPDIR=" + p.home}, p.program.Env...)
	cmd.Dir = p.home
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	err = p.starter.start(cmd)
	log.Close()
	if err != nil {
		p.mu.Unlock()
		return fmt.Errorf("starting %s: %w", p.program.Name, err)
	}
	exited := make(chan struct{})
	p.cmd, p.exited, p.err = cmd, exited, nil
	p.mu.Unlock()

	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(exited)
	}()
	return p.waitReady(ctx, exited)
}

func (p *Process) waitReady(ctx context.Context, exited <-chan struct{}) error {
	if p.program.Ready == nil {
		return nil
	}
	err := poll(ctx, p.program.Name+" is ready", func(ctx context.Context) error {
		if isClosed(exited) {
			return final{fmt.Errorf("it ended: %w", p.exitError())}
		}
		return p.program.Ready(ctx)
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, p.tail(0))
	}
	return nil
}

// Stop ends the process with SIGTERM and waits for it. It is an error when the
// process needs SIGKILL after Program.Grace, or has ended before.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	grace := p.program.Grace
	if grace == 0 {
		grace = 10 * time.Second
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.Exited():
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s did not end within %s of SIGTERM", p.program.Name, grace), p.Kill())
	}
}

// Kill ends the process with SIGKILL, as a node that loses power: a Lease that
// it holds is not released. It returns once the process is gone.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.Exited()
	return nil
}

// Freeze stops the process's threads (SIGSTOP): connections stay open and
// nothing answers, as on a node that hangs. Thaw lets it go on.
func (p *Process) Freeze() error { return p.Signal(syscall.SIGSTOP) }

// Thaw ends Freeze.
func (p *Process) Thaw() error { return p.Signal(syscall.SIGCONT) }

// Signal sends a signal to the process.
func (p *Process) Signal(s os.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || isClosed(p.exited) {
		return fmt.Errorf("sending %s to %s: %w", s, p.program.Name, errNotRunning)
	}
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("sending %s to %s: %w", s, p.program.Name, err)
	}
	return nil
}

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exited
}

// Name of the process.
func (p *Process) Name() string { return p.program.Name }

// Pid of the process, also after it has ended.
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// ExitCode of a process that has ended; -1 while it runs or when a signal
// ended it.
func (p *Process) ExitCode() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !isClosed(p.exited) {
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *Process) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd != nil && !isClosed(p.exited)
}

func (p *Process) exitError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		return errors.New("exit status 0")
	}
	return p.err
}

// Log returns all that the process has written to stdout and stderr.
func (p *Process) Log() string { return p.LogSince(0) }

// LogSize is the length of the log so far, in bytes, for LogSince.
func (p *Process) LogSize() int64 {
	info, err := os.Stat(p.logPath)
	if err != nil {
		return 0
	}
	return info.Size()
}

// LogSince returns the log from the given byte on.
func (p *Process) LogSince(offset int64) string {
	f, err := os.Open(p.logPath)
	if err != nil {
		return ""
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return ""
	}
	content, err := io.ReadAll(f)
	if err != nil {
		return ""
	}
	return string(content)
}

// tail returns the last lines of the log after offset, under a heading; empty
// when there is none.
func (p *Process) tail(offset int64) string {
	const lines = 60
	const width = 600
	content := bytes.TrimSpace([]byte(p.LogSince(offset)))
	if len(content) == 0 {
		return ""
	}
	all := bytes.Split(content, []byte("\n"))
	skipped := max(0, len(all)-lines)
	var b bytes.Buffer
	fmt.Fprintf(&b, "--- %s (%s, %d lines left out) ---\n", p.program.Name, p.logPath, skipped)
	for _, line := range all[skipped:] {
		if len(line) > width {
			line = append(line[:width:width], "..."...)
		}
		b.Write(line)
		b.WriteByte('\n')
	}
	return b.String()
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Run starts a program beside the cluster and waits until it is ready. Its log
// is kept with the others, and it is ended with the cluster at the latest. A
// name may be used again once its process has ended.
func (c *Cluster) Run(ctx context.Context, program Program) (*Process, error) {
	p := &Process{
		program: program,
		starter: c.starter,
		home:    c.stateDir,
		logPath: filepath.Join(c.stateDir, "logs", program.Name+".log"),
	}
	c.mu.Lock()
	for i, other := range c.processes {
		if other.program.Name != program.Name {
			continue
		}
		if other.running() {
			c.mu.Unlock()
			return nil, fmt.Errorf("starting %s: a process of this name runs already", program.Name)
		}
		c.processes = slices.Delete(c.processes, i, i+1)
		break
	}
	c.processes = append(c.processes, p)
	c.mu.Unlock()
	if err := p.Start(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// Process returns the process of that name, nil when there is none: etcd,
// kube-apiserver, kube-controller-manager, kube-scheduler, kwok, gatekeeper,
// and those that Run has started.
func (c *Cluster) Process(name string) *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.processes {
		if p.program.Name == name {
			return p
		}
	}
	return nil
}
