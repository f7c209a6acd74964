package controlplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// orphanHelper makes this test binary a process that starts another one and
// waits to be killed.
const orphanHelper = "CONTROLPLANE_ORPHAN_HELPER"

func runOrphanHelper() {
	c := &Cluster{starter: newStarter(), stateDir: os.Getenv(orphanHelper)}
	p, err := c.Run(context.Background(), Program{Name: "child", Path: "/bin/sleep", Args: []string{"600"}})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(p.Pid())
	select {}
}

func TestProcessesEndWithTheProcessThatStartedThem(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), orphanHelper+"="+dir)
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("the helper said %q", line)
	}
	if err := syscall.Kill(child, 0); err != nil {
		t.Fatalf("the child does not run: %v", err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := parent.Wait(); err == nil {
		t.Fatal("the helper ended well though it was killed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err = WaitFor(ctx, "the child is gone", func(context.Context) error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		if errors.Is(err, os.ErrNotExist) || strings.Contains(string(stat), ") Z ") {
			return nil // gone, or dead and not reaped by whoever inherited it
		}
		return fmt.Errorf("it runs: %s", stat)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestASecondBuildWaitsForTheFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(t.Context(), path, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lockFile(short, path, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("a held lock gives %v", err)
	}
	unlock()
	again, err := lockFile(t.Context(), path, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestDecodeTakesListsApartAndLeavesEmptyDocumentsOut(t *testing.T) {
	objects, err := Decode("# nothing\n---\n{kind: A, apiVersion: v1, metadata: {name: a}}\n---\nkind: List\napiVersion: v1\nitems:\n- {kind: B, apiVersion: v1, metadata: {name: b}}\n- {kind: C, apiVersion: v1}\n")
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, object := range objects {
		kinds = append(kinds, object.GetKind())
	}
	if got := strings.Join(kinds, ""); got != "ABC" {
		t.Errorf("decoded %s, expected ABC", got)
	}
	if _, err := Decode("a: b: c"); err == nil {
		t.Error("broken YAML was read")
	}
}

func TestANamespaceTellsWhichTestItBelongsTo(t *testing.T) {
	for test, want := range map[string]string{
		"TestAPod": "t-apod-",
		"TestA/a_pod_that_is_named_with_far_too_many_words_to_fit": "t-a-a-pod-that-is-named-with-far-too-many-",
	} {
		if got := namespacePrefix(test); got != want {
			t.Errorf("%s: got %s, expected %s", test, got, want)
		}
	}
}
