package certificates

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

var requests = []Request{
	{Name: "provider", CommonName: "archkeeper-provider", Hosts: []string{"archkeeper.ns.svc", "127.0.0.1"}},
	{Name: "controllers", CommonName: "archkeeper-controllers", Client: true},
}

// cluster replays plans and checks after each that whoever trusts what was
// published before the plan accepts what is served after it.
type cluster struct {
	t      *testing.T
	now    time.Time
	life   Lifetimes
	state  State
	leaves map[string]Pair
	trust  []byte // what consumers hold
	notes  []string
}

func (c *cluster) plan(published bool) Outcome {
	c.t.Helper()
	if published {
		c.trust = c.state.Bundle()
	}
	before := c.leaves
	out, err := Plan(c.now, c.life, c.state, c.leaves, requests, published, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	c.state, c.leaves = out.State, out.Leaves
	c.notes = append(c.notes, out.Notes...)
	if c.trust != nil {
		c.mustVerify(c.trust, c.leaves, "the new leaf against what consumers hold")
		c.mustVerify(c.state.Bundle(), before, "the old leaf, still served, against the new bundle")
	}
	return out
}

func (c *cluster) mustVerify(bundle []byte, leaves map[string]Pair, what string) {
	c.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	for name, leaf := range leaves {
		block, _ := pem.Decode(leaf.Cert)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			c.t.Fatal(err)
		}
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: c.now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
			c.t.Errorf("%s: %s at %s: %v", what, name, c.now, err)
		}
	}
}

func TestRotationNeverBreaksTrust(t *testing.T) {
	c := &cluster{t: t, now: start, leaves: map[string]Pair{}, life: Lifetimes{Authority: 90 * 24 * time.Hour, Leaf: 9 * 24 * time.Hour, Overlap: 10 * time.Minute}}
	c.plan(false)
	first := c.state.Active
	for range 400 { // about three lives of an authority
		out := c.plan(true)
		c.now = c.now.Add(min(out.Again, 24*time.Hour))
	}
	if string(c.state.Active.Cert) == string(first.Cert) {
		t.Error("the authority was never replaced")
	}
	if n := strings.Count(strings.Join(c.notes, "\n"), "now signs"); n < 2 {
		t.Errorf("%d rotations, want several", n)
	}
}

func TestANewAuthoritySignsNothingBeforeEverybodyTrustsIt(t *testing.T) {
	c := &cluster{t: t, now: start, leaves: map[string]Pair{}, life: Lifetimes{Leaf: 700 * 24 * time.Hour}}
	c.plan(false)
	c.plan(true)
	c.now = start.Add(2 * 365 * 24 * time.Hour * 7 / 10)
	c.plan(true)
	if c.state.Next.Empty() {
		t.Fatal("no next authority at 70 % of the active one's life")
	}
	for range 20 { // somebody does not take it
		c.now = c.now.Add(time.Hour)
		c.plan(false)
	}
	if c.state.Next.Empty() {
		t.Fatal("the next authority took over though somebody does not trust it")
	}
	c.plan(true)
	c.now = c.now.Add(10*time.Minute - time.Second)
	c.plan(true)
	if c.state.Next.Empty() {
		t.Fatal("the next authority took over before the overlap was over")
	}
	c.now = c.now.Add(time.Second)
	c.plan(true)
	if !c.state.Next.Empty() || len(c.state.Old) == 0 {
		t.Fatal("the next authority did not take over, or the old one is not trusted any more")
	}
	c.now = c.now.Add(10 * time.Minute)
	c.plan(true)
	if len(c.state.Old) != 0 {
		t.Error("the old authority is still trusted after the overlap")
	}
}

func TestNothingIsIssuedTwice(t *testing.T) {
	c := &cluster{t: t, now: start, leaves: map[string]Pair{}}
	c.plan(false)
	notes := len(c.notes)
	for range 100 {
		c.now = c.now.Add(time.Hour)
		c.plan(true)
	}
	if len(c.notes) != notes {
		t.Errorf("without a need: %q", c.notes[notes:])
	}
}

func TestChangedNamesAreIssuedAnew(t *testing.T) {
	out, err := Plan(start, Lifetimes{}, State{}, nil, requests, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	renamed := slices.Clone(requests)
	renamed[0].Hosts = []string{"other.ns.svc"}
	again, err := Plan(start, Lifetimes{}, out.State, out.Leaves, renamed, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	if string(again.Leaves["provider"].Cert) == string(out.Leaves["provider"].Cert) {
		t.Error("the leaf kept its old names")
	}
	if string(again.Leaves["controllers"].Cert) != string(out.Leaves["controllers"].Cert) {
		t.Error("a leaf whose names did not change was issued anew")
	}
}

func TestABrokenAuthorityIsNotReplacedInSilence(t *testing.T) {
	_, err := Plan(start, Lifetimes{}, State{Active: Pair{Cert: []byte("x"), Key: []byte("y")}}, nil, requests, false, nil)
	if err == nil || !strings.Contains(err.Error(), "active authority") {
		t.Errorf("got %v, want an error that names the active authority", err)
	}
}

// The new leaf could not be written when the next authority took over: the old
// one, which signed the leaf in use, stays trusted until a whole overlap after it
// could.
func TestTheOldAuthorityIsTrustedWhileItsLeafIsInUse(t *testing.T) {
	life := Lifetimes{Overlap: 10 * time.Minute}
	first, err := Plan(start, life, State{}, nil, requests, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	state, now := first.State, start
	state.Asked = true
	plan := func(after time.Duration, leaves map[string]Pair) Outcome {
		t.Helper()
		now = now.Add(after)
		out, err := Plan(now, life, state, leaves, requests, true, nil)
		if err != nil {
			t.Fatal(err)
		}
		state = out.State
		return out
	}
	plan(0, first.Leaves)
	plan(time.Minute, first.Leaves)
	plan(10*time.Minute, first.Leaves) // the next one signs; its leaves are not written
	if len(state.Old) == 0 {
		t.Fatal("the next authority did not take over")
	}
	late := plan(time.Hour, first.Leaves)
	if len(state.Old) == 0 {
		t.Fatal("the old authority is not trusted while its leaf is in use")
	}
	plan(9*time.Minute, late.Leaves)
	if len(state.Old) == 0 {
		t.Error("the old authority is not trusted for an overlap after the new leaf was written")
	}
	plan(time.Minute, late.Leaves)
	if len(state.Old) > 0 {
		t.Error("the old authority is still trusted after the overlap")
	}
}
