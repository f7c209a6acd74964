package mirrors

import (
	"slices"
	"strings"
)

// mergeOrder merges the lists of mirrors that several objects give for one
// source and one kind of pull. Neighbours in a list are the edges of a graph
// that is sorted topologically (Kahn's algorithm): roots in alphabetical order,
// the nodes that a step frees appended in alphabetical order. A cycle is broken
// at the alphabetically first unused node that is not the source.
//
// A mirror counts where a list names it first. A source that some list names
// before its end is a node like others, and every list without it ends with
// it; else it is no part of the graph, for it is tried last anyway. The result
// does not depend on the order of lists.
func mergeOrder(source string, lists [][]string) []string {
	lists = firsts(lists)
	placed := slices.ContainsFunc(lists, func(l []string) bool {
		at := slices.Index(l, source)
		return at >= 0 && at < len(l)-1
	})
	if len(lists) == 1 { // as is almost always the case
		if l := lists[0]; l[len(l)-1] == source {
			return l[:len(l)-1]
		}
		return lists[0]
	}
	g := graph{}
	for _, l := range lists {
		at := slices.Index(l, source)
		switch {
		case placed && at < 0:
			l = append(slices.Clip(l), source)
		case !placed && at >= 0:
			l = l[:at]
		}
		for i, node := range l {
			g.node(node)
			if i > 0 {
				g.edge(l[i-1], node)
			}
		}
	}
	order := g.sorted(source)
	if n := len(order); n > 0 && order[n-1] == source {
		order = order[:n-1]
	}
	return order
}

// firsts drops from each list what it names again.
func firsts(lists [][]string) [][]string {
	out := make([][]string, 0, len(lists))
	for _, l := range lists {
		kept := make([]string, 0, len(l))
		seen := map[string]bool{}
		for _, m := range l {
			if !seen[m] {
				seen[m] = true
				kept = append(kept, m)
			}
		}
		out = append(out, kept)
	}
	return out
}

type graph map[string]*vertex

type vertex struct {
	name string
	used bool
	in   int // edges from nodes that are not used yet
	out  map[string]*vertex
}

func (g graph) node(name string) *vertex {
	v, ok := g[name]
	if !ok {
		v = &vertex{name: name, out: map[string]*vertex{}}
		g[name] = v
	}
	return v
}

func (g graph) edge(from, to string) {
	a, b := g.node(from), g.node(to)
	if _, known := a.out[to]; !known {
		a.out[to] = b
		b.in++
	}
}

func (g graph) sorted(source string) []string {
	all := make([]*vertex, 0, len(g))
	for _, v := range g {
		all = append(all, v)
	}
	byName := func(a, b *vertex) int { return strings.Compare(a.name, b.name) }
	slices.SortFunc(all, func(a, b *vertex) int {
		if (a.name == source) != (b.name == source) { // the source breaks a cycle last
			if a.name == source {
				return 1
			}
			return -1
		}
		return byName(a, b)
	})
	var free []*vertex
	for _, v := range all {
		if v.in == 0 {
			free = append(free, v)
		}
	}
	slices.SortFunc(free, byName)
	order := make([]string, 0, len(all))
	for next := 0; len(order) < len(all); {
		if len(free) == 0 {
			for all[next].used {
				next++
			}
			free = append(free, all[next])
		}
		v := free[0]
		free = free[1:]
		v.used = true
		order = append(order, v.name)
		var freed []*vertex
		for _, w := range v.out {
			if w.in--; w.in == 0 && !w.used {
				freed = append(freed, w)
			}
		}
		slices.SortFunc(freed, byName)
		free = append(free, freed...)
	}
	return order
}
