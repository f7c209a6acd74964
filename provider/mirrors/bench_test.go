package mirrors

import (
	"fmt"
	"testing"

	"github.com/archkeeper/archkeeper/provider/imageref"
)

// manyObjects gives objects with ten entries each, some nested in others.
func manyObjects(tb testing.TB, objects int) []Object {
	var out []Object
	for i := range objects {
		var rules []string
		for j := range 10 {
			source := fmt.Sprintf("r%d.example.com/team%d", i%97, i)
			if j > 0 {
				source += fmt.Sprintf("/app%d", j)
			}
			rules = append(rules, fmt.Sprintf("%s -> m%d.io/x%d/%d,n.io/y%d/%d", source, i%7, i, j, i, j))
		}
		set := D(rules...)
		if i%5 == 0 {
			set = T(rules...)
		}
		set["metadata"] = map[string]any{"name": fmt.Sprint("set-", i)}
		o, ok := FromMap(set)
		if !ok {
			tb.Fatal("not read")
		}
		out = append(out, o)
	}
	o, _ := FromMap(R("I *.example.com,m1.io", "B r1.example.com/team1,r2.example.com"))
	return append(out, o)
}

// BenchmarkBuild shows that cost grows no faster than n log n: compare ns/entry
// of the two sizes.
//
//	go test ./provider/mirrors -run '^$' -bench Build -count 6 | benchstat -
func BenchmarkBuild(b *testing.B) {
	for _, n := range []int{200, 2000} {
		objects := manyObjects(b, n)
		b.Run(fmt.Sprintf("objects=%d,entries=%d", n, 10*n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if len(Build(objects, Options{}).RegistriesConf()) == 0 {
					b.Fatal("nothing rendered")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(10*n), "ns/entry")
		})
	}
}

// BenchmarkResolve: a look-up does not depend on the number of entries.
func BenchmarkResolve(b *testing.B) {
	for _, n := range []int{200, 2000} {
		c := Build(manyObjects(b, n), Options{}).Config
		ref, err := imageref.Parse("r5.example.com/team102/app3/x@" + someDigest)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("entries=%d", 10*n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Resolve(ref)
			}
		})
	}
}
