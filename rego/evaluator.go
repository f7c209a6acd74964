package rego

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"
	"k8s.io/utils/clock"
)

//go:embed placement/*.rego
var sources embed.FS

// entryPoint is the rule that decides.
const entryPoint = "data.archkeeper.placement.decision"

// builtinPackage is replaced whole when a user policy declares it.
const builtinPackage = "data.archkeeper.placement"

// DefaultUserDeadline is how long a user policy may think about one pod.
const DefaultUserDeadline = 100 * time.Millisecond

// builtinDeadline bounds the built-in policy, which takes a millisecond.
const builtinDeadline = 5 * time.Second

// Options say how an Evaluator works. The zero value evaluates the built-in policy.
type Options struct {
	// UserPolicy is a directory of .rego files and data.json or data.yaml, or an
	// OPA bundle (.tar.gz), that extends the built-in policy or replaces it.
	// Empty: none.
	UserPolicy string
	// UserDeadline is how long the user policy may think about one pod;
	// DefaultUserDeadline when 0.
	UserDeadline time.Duration
	// Remember decisions about pods that are the same but for their names. It is
	// without effect beside a user policy.
	Remember bool
	// Interval between two looks at UserPolicy; one second when 0.
	Interval time.Duration
	// Clock of the reload interval; the real one when nil.
	Clock clock.WithTicker
	// Log takes a line for each reload and for each distinct fault of the user
	// policy; nothing is logged when nil.
	Log *slog.Logger
	// Metrics count; nothing is counted when nil.
	Metrics *Metrics
	// OnReload is called after a changed user policy has taken effect; nil for none.
	OnReload func()
}

// Evaluator decides about pods. Its methods are safe for concurrent use.
type Evaluator struct {
	options Options
	builtin rego.PreparedEvalQuery
	user    atomic.Pointer[rego.PreparedEvalQuery]
	memory  *memory // nil when nothing is remembered

	reloading sync.Mutex // guards source
	source    userSource

	mu     sync.Mutex        // guards faults
	faults map[string]string // by where it came from, the last one logged
}

// New compiles the policies once. A user policy that does not load or compile is
// an error here; later, when it is changed, the last good one stays.
func New(ctx context.Context, options Options) (*Evaluator, error) {
	if options.UserDeadline <= 0 {
		options.UserDeadline = DefaultUserDeadline
	}
	if options.Interval <= 0 {
		options.Interval = time.Second
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	if options.Metrics == nil {
		options.Metrics = NewMetrics(nil)
	}
	builtin, err := prepare(ctx, policy{}, ast.CapabilitiesForThisVersion())
	if err != nil {
		return nil, fmt.Errorf("compiling the built-in placement policy: %w", err)
	}
	e := &Evaluator{options: options, builtin: builtin, source: userSource{path: options.UserPolicy}, faults: map[string]string{}}
	if options.UserPolicy == "" {
		if options.Remember {
			e.memory = &memory{decisions: map[[sha256.Size]byte]Decision{}}
		}
		return e, nil
	}
	if _, err := e.reload(ctx); err != nil {
		return nil, fmt.Errorf("user policy %s: %w", options.UserPolicy, err)
	}
	return e, nil
}

// Run looks at the user policy at each interval and takes a changed one that
// compiles, until ctx ends. A broken one is said once, in the log and the metrics,
// and the last good one stays. Without a user policy Run waits for ctx.
func (e *Evaluator) Run(ctx context.Context) error {
	if e.options.UserPolicy == "" {
		<-ctx.Done()
		return nil
	}
	ticker := e.options.Clock.NewTicker(e.options.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
			e.Look(ctx)
		}
	}
}

// Look takes a changed user policy now.
func (e *Evaluator) Look(ctx context.Context) {
	changed, err := e.reload(ctx)
	switch {
	case err != nil && e.fresh("reload", err.Error()):
		e.options.Metrics.reloads.WithLabelValues("failed").Inc()
		e.options.Log.Error("could not load the user policy; the last good one stays in use",
			"policy", e.options.UserPolicy, "error", err)
	case err == nil && changed:
		e.options.Metrics.reloads.WithLabelValues("loaded").Inc()
		e.options.Log.Info("loaded the user policy", "policy", e.options.UserPolicy)
		if e.options.OnReload != nil {
			e.options.OnReload()
		}
	}
}

func (e *Evaluator) reload(ctx context.Context) (changed bool, err error) {
	e.reloading.Lock()
	defer e.reloading.Unlock()
	p, changed, err := e.source.look()
	if err != nil || !changed {
		return false, err
	}
	prepared, err := prepare(ctx, p, UserCapabilities())
	if err != nil {
		return false, err
	}
	e.user.Store(&prepared)
	e.fresh("reload", "")
	e.fresh("user", "")
	return true, nil
}

// Decide gives the decision about one pod. A user policy that fails, takes too
// long or wants what the guard does not let past is set aside for this pod: the
// built-in policy decides, and metric and log say so. Should that fail too, the
// pod is let go. The error is for an input from which nothing can be decided.
func (e *Evaluator) Decide(ctx context.Context, in Input) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, fmt.Errorf("deciding: %w", err) // the engine notices a little later, or not at all
	}
	remembers := false
	if e.memory != nil {
		in, remembers = shorten(in)
	}
	raw, err := json.Marshal(in)
	if err != nil {
		return Decision{}, fmt.Errorf("encoding the policy's input: %w", err)
	}
	if remembers {
		if d, ok := e.memory.recall(raw); ok {
			return e.count(in, d), nil
		}
	}
	input, err := ast.ValueFromReader(bytes.NewReader(raw))
	if err != nil {
		return Decision{}, fmt.Errorf("reading the policy's input: %w", err)
	}
	if user := e.user.Load(); user != nil {
		d, err := e.evaluate(ctx, *user, input, in, e.options.UserDeadline)
		if err == nil {
			return e.count(in, d), nil
		}
		if ctx.Err() != nil {
			return Decision{}, fmt.Errorf("deciding: %w", ctx.Err())
		}
		e.failed("user", err)
	}
	d, err := e.evaluate(ctx, e.builtin, input, in, builtinDeadline)
	if err == nil {
		if remembers {
			e.memory.keep(raw, d)
		}
		return e.count(in, d), nil
	}
	if ctx.Err() != nil {
		return Decision{}, fmt.Errorf("deciding: %w", ctx.Err())
	}
	e.failed("builtin", err)
	d, err = letGo(in, err)
	if err != nil {
		return Decision{}, err
	}
	return e.count(in, d), nil
}

func (e *Evaluator) count(in Input, d Decision) Decision {
	e.options.Metrics.decisions.WithLabelValues(string(in.Phase), string(d.Action)).Inc()
	return d
}

func (e *Evaluator) evaluate(ctx context.Context, query rego.PreparedEvalQuery, input ast.Value, in Input, deadline time.Duration) (Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	results, err := query.Eval(ctx, rego.EvalParsedInput(input))
	if err != nil {
		return Decision{}, fmt.Errorf("evaluating: %w", err)
	}
	if len(results) != 1 || len(results[0].Expressions) != 1 {
		return Decision{}, errors.New("the policy gives no decision")
	}
	d, err := decode(results[0].Expressions[0].Value)
	if err != nil {
		return Decision{}, err
	}
	if err := check(in, d); err != nil {
		return Decision{}, err
	}
	return d, nil
}

// failed counts a policy's failure and logs it when it is another than the last.
// What a policy was at when its time ended differs each time and is no other fault.
func (e *Evaluator) failed(policy string, err error) {
	kind := "error"
	var guard *GuardError
	switch {
	case errors.As(err, &guard):
		kind = "guard"
	case errors.Is(err, context.DeadlineExceeded), topdown.IsCancel(err):
		kind = "deadline"
	}
	e.options.Metrics.failures.WithLabelValues(policy, kind).Inc()
	fault := err.Error()
	if kind == "deadline" {
		fault = kind
	}
	if e.fresh(policy, fault) {
		e.options.Log.Error("a placement policy failed and was set aside", "policy", policy, "kind", kind, "error", err)
	}
}

// fresh tells whether a fault is another than the last one from the same source;
// an empty one forgets it.
func (e *Evaluator) fresh(source, fault string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.faults[source] == fault {
		return false
	}
	e.faults[source] = fault
	return true
}

// UserCapabilities are what a user policy may call: everything of this OPA but
// network and environment.
func UserCapabilities() *ast.Capabilities {
	capabilities := ast.CapabilitiesForThisVersion()
	kept := capabilities.Builtins[:0:0]
	for _, b := range capabilities.Builtins {
		switch b.Name {
		case ast.HTTPSend.Name, ast.OPARuntime.Name, ast.NetLookupIPAddr.Name:
		default:
			kept = append(kept, b)
		}
	}
	capabilities.Builtins = kept
	capabilities.AllowNet = []string{}
	return capabilities
}

// prepare compiles the built-in policy with a user's, or the user's alone when it
// declares the package of the built-in one.
func prepare(ctx context.Context, user policy, capabilities *ast.Capabilities) (rego.PreparedEvalQuery, error) {
	modules := map[string]*ast.Module{}
	replaces := false
	for name, source := range user.modules {
		module, err := ast.ParseModuleWithOpts(name, source, ast.ParserOptions{RegoVersion: ast.RegoV1, Capabilities: capabilities})
		if err != nil {
			return rego.PreparedEvalQuery{}, fmt.Errorf("parsing: %w", err)
		}
		if module == nil {
			continue // an empty file
		}
		replaces = replaces || module.Package.Path.String() == builtinPackage
		modules[name] = module
	}
	if !replaces {
		if err := addBuiltin(modules); err != nil {
			return rego.PreparedEvalQuery{}, err
		}
	}
	compiler := ast.NewCompiler().WithCapabilities(capabilities).WithDefaultRegoVersion(ast.RegoV1)
	compiler.Compile(modules)
	if compiler.Failed() {
		return rego.PreparedEvalQuery{}, fmt.Errorf("compiling: %w", compiler.Errors)
	}
	data := user.data
	if data == nil {
		data = map[string]any{}
	}
	query, err := rego.New(
		rego.Query(entryPoint),
		rego.Compiler(compiler),
		rego.Capabilities(capabilities),
		rego.Store(inmem.NewFromObject(data)),
		rego.StrictBuiltinErrors(true),
	).PrepareForEval(ctx)
	if err != nil {
		return rego.PreparedEvalQuery{}, fmt.Errorf("preparing: %w", err)
	}
	return query, nil
}

func addBuiltin(modules map[string]*ast.Module) error {
	names, err := fs.Glob(sources, "placement/*.rego")
	if err != nil {
		return fmt.Errorf("listing the built-in policy: %w", err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.rego") {
			continue
		}
		source, err := sources.ReadFile(name)
		if err != nil {
			return fmt.Errorf("reading the built-in policy: %w", err)
		}
		key := path.Join("archkeeper", name)
		module, err := ast.ParseModuleWithOpts(key, string(source), ast.ParserOptions{RegoVersion: ast.RegoV1})
		if err != nil {
			return fmt.Errorf("parsing the built-in policy: %w", err)
		}
		modules[key] = module
	}
	return nil
}
