//go:build unix

package admission_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/archkeeper/archkeeper/controllers/admission"
	"github.com/archkeeper/archkeeper/rego"
)

// heard remembers what its Evaluator was asked.
type heard struct {
	admission.Evaluator
	in rego.Input
}

func (h *heard) Decide(ctx context.Context, in rego.Input) (rego.Decision, error) {
	h.in = in
	return h.Evaluator.Decide(ctx, in)
}

// decided has a pod admitted and gives what the policy was asked about it.
func (w *world) decided(t testing.TB, text string) (*heard, corev1.Pod) {
	t.Helper()
	options := w.options
	h := &heard{Evaluator: options.Evaluator}
	options.Evaluator = h
	admit(t, admission.New(options), review(w.pod(t, text)))
	var pod corev1.Pod
	if err := json.Unmarshal(h.in.Pod, &pod); err != nil {
		t.Fatal(err)
	}
	return h, pod
}

func admit(t testing.TB, handler http.Handler, body []byte) []byte {
	t.Helper()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, "/v1/admit/token?timeout=30s", bytes.NewReader(body)))
	if recorder.Code != http.StatusOK {
		t.Fatal(recorder.Code, recorder.Body)
	}
	return recorder.Body.Bytes()
}

// BenchmarkAdmission admits a pod whose images are known, by turns with what
// cannot be spared: decoding the review, one evaluation of the prepared policy
// with its guard, and encoding an answer. It prints how many times as much processor
// time admission takes; what the same decision takes that is made in Go (see
// plainly), decoding and encoding included; and what admission takes for a pod that
// is like an earlier one, whose decision is remembered.
//
//	go test -run '^$' -bench Admission ./controllers/admission
func BenchmarkAdmission(b *testing.B) {
	w := newWorld(b)
	const text = "metadata: {generateName: p-, labels: {app: web}}\nspec: {containers: [{name: a, image: R/both:v1}, {name: b, image: R/amd64:v1}]}"
	body := review(w.pod(b, text))
	handler := admission.New(w.options)
	remembering, err := rego.New(b.Context(), rego.Options{Remember: true})
	if err != nil {
		b.Fatal(err)
	}
	options := w.options
	options.Evaluator = remembering
	again := admission.New(options)
	asked, _ := w.decided(b, text)

	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(admit(b, handler, body), &answer); err != nil || len(answer.Response.Patch) == 0 {
		b.Fatal("the pod was not placed", err)
	}
	decode := func() (review admissionv1.AdmissionReview) {
		if err := json.Unmarshal(body, &review); err != nil {
			b.Fatal(err)
		}
		return review
	}
	encode := func() {
		if _, err := json.Marshal(answer); err != nil {
			b.Fatal(err)
		}
	}
	ways := []struct {
		name string
		do   func()
	}{
		{"admission", func() { admit(b, handler, body) }},
		{"bare", func() {
			decode()
			if _, err := asked.Evaluator.Decide(b.Context(), asked.in); err != nil {
				b.Fatal(err)
			}
			encode()
		}},
		{"plain-go", func() {
			var pod corev1.Pod
			if err := json.Unmarshal(decode().Request.Object.Raw, &pod); err != nil {
				b.Fatal(err)
			}
			patch, err := json.Marshal(plainly(&pod, asked.in.Images, w.placed.Gate))
			if err != nil {
				b.Fatal(err)
			}
			answer.Response.Patch = patch
			encode()
		}},
		{"remembered", func() { admit(b, again, body) }},
	}
	took := map[string]time.Duration{}
	for b.Loop() {
		for _, way := range ways {
			started := processorTime(b)
			way.do()
			took[way.name] += processorTime(b) - started
		}
	}
	b.ReportMetric(0, "ns/op")
	for _, way := range ways {
		b.ReportMetric(took[way.name].Seconds()*1e6/float64(b.N), "us/"+way.name)
	}
	b.ReportMetric(took["admission"].Seconds()/took["bare"].Seconds(), "x-bare")
	b.ReportMetric(took["bare"].Seconds()/took["plain-go"].Seconds(), "bare-x-plain-go")
}

// processorTime of this process: unlike the time of day, it does not depend on what
// else the machine does.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
