package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/open-policy-agent/frameworks/constraint/pkg/externaldata"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/wire"
)

// maxMessage is the length in bytes to which an item error's message is cut.
const maxMessage = 1024

// step is what becomes of one key before anything is asked: a question for the
// inspector, or, when settled, a value or a durable verdict.
type step struct {
	query   provider.Query
	settled bool
	value   any             // settled, and good
	verdict *provider.Error // settled, and bad
}

// reader turns a key into its step.
type reader func(key string) step

// plainKey reads a key that is an image reference and nothing else. A user may
// write a structured key where an image belongs; it is never trusted.
func plainKey(key string) step {
	if wire.Structured(key) {
		return step{settled: true, verdict: provider.Errorf(provider.ClassMalformed,
			"%s is no image reference; structured keys belong to %s", provider.Quote(key), PathNamespaced)}
	}
	return step{query: provider.Query{Image: key}}
}

// structuredKey reads a key that names an image and whose pull credentials are
// to be used.
func structuredKey(key string) step {
	parsed, err := wire.ParseKey(key)
	if err != nil {
		return step{settled: true, verdict: verdictOf(err)}
	}
	return step{query: parsed.Query()}
}

// pinKey reads a plain key of which the digest is wanted. A reference with a
// digest is pinned already, and one that a mirror of tags may answer is left
// alone; both come back as they are.
func pinKey(hasTagMirrors func(imageref.Reference) bool) reader {
	return func(key string) step {
		plain := plainKey(key)
		if plain.settled {
			return plain
		}
		ref, err := imageref.Parse(key)
		switch {
		case err != nil:
			return step{settled: true, verdict: verdictOf(err)}
		case ref.Digest() != "" || hasTagMirrors(ref):
			return step{settled: true, value: key}
		}
		return plain
	}
}

// verdictOf gives the *provider.Error that the pure parsers return.
func verdictOf(err error) *provider.Error {
	var verdict *provider.Error
	if errors.As(err, &verdict) {
		return verdict
	}
	return provider.Errorf(provider.ClassInternal, "a key was refused without a class: %w", err)
}

// platformsValue is the item value of the external data paths.
func platformsValue(answer provider.Answer) (any, *provider.Error) {
	return wire.ValueFromAnswer(answer), nil
}

// pinnedValue is the item value of PathPin: the canonical reference with its
// tag and digest.
func pinnedValue(answer provider.Answer) (any, *provider.Error) {
	ref, err := imageref.Parse(answer.Reference)
	if err != nil || answer.Digest == "" {
		return nil, provider.Errorf(provider.ClassInternal, "the digest of %s did not become known", provider.Quote(answer.Image))
	}
	pinned, err := ref.WithDigest(answer.Digest)
	if err != nil {
		return nil, provider.Errorf(provider.ClassInternal, "%s cannot be pinned to its digest", provider.Quote(answer.Image))
	}
	return pinned.String(), nil
}

// outcome is a response and what the metrics count of it.
type outcome struct {
	response externaldata.Response
	items    []provider.Class // of item errors
	held     []provider.Class // of undetermined keys
}

// assemble answers distinct keys, in their order. answers holds the answers of
// the steps that are not settled, in the order of these.
//
// A durable verdict becomes an item error. A failure that may pass becomes a
// part of the systemError when hold is set, and its key no item: whoever asked
// keeps items and asks again for what is missing. Without hold it is an item
// error too.
func assemble(keys []string, steps []step, answers []provider.Answer, value func(provider.Answer) (any, *provider.Error), hold bool) outcome {
	out := outcome{response: externaldata.Response{Idempotent: true, Items: make([]externaldata.Item, 0, len(keys))}}
	var undetermined []wire.Undetermined
	for i, key := range keys {
		good, bad := steps[i].value, steps[i].verdict
		if !steps[i].settled {
			bad = answers[0].Err
			if bad == nil {
				good, bad = value(answers[0])
			}
			answers = answers[1:]
		}
		switch {
		case bad == nil:
			out.response.Items = append(out.response.Items, externaldata.Item{Key: key, Value: good})
		case hold && bad.Class.Retryable():
			out.held = append(out.held, bad.Class)
			undetermined = append(undetermined, wire.Undetermined{Key: key, Class: bad.Class, Message: bad.Message})
		default:
			out.items = append(out.items, bad.Class)
			out.response.Items = append(out.response.Items, externaldata.Item{Key: key, Error: itemError(bad)})
		}
	}
	out.response.SystemError = wire.EncodeSystemError(undetermined)
	return out
}

func itemError(err *provider.Error) string {
	text := err.Error()
	if len(text) <= maxMessage {
		return text
	}
	return string(bytes.ToValidUTF8([]byte(text[:maxMessage]), nil)) + "..."
}

// failed gives one and the same failure as the answer of every query.
func failed(queries []provider.Query, err *provider.Error) []provider.Answer {
	answers := make([]provider.Answer, len(queries))
	for i, query := range queries {
		answers[i] = provider.Answer{Image: query.Image, Err: err}
	}
	return answers
}

// writeResponse writes a ProviderResponse. The body is made before the first
// byte is sent: it is complete or it is another one.
func writeResponse(w http.ResponseWriter, status int, version string, response externaldata.Response) {
	writeJSON(w, status, externaldata.ProviderResponse{
		APIVersion: version, Kind: externaldata.ProviderResponseKind, Response: response,
	})
}

// writeFault writes a ProviderResponse that only says what is wrong.
func writeFault(w http.ResponseWriter, status int, version, text string) {
	writeResponse(w, status, version, externaldata.Response{Idempotent: true, SystemError: text})
}

func writeJSON(w http.ResponseWriter, status int, object any) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false) // a key of digits, dots and < stays readable
	if err := encoder.Encode(object); err != nil {
		status = http.StatusInternalServerError
		body.Reset()
		body.WriteString(`{"apiVersion":"` + apiVersionBeta + `","kind":"ProviderResponse","response":{"idempotent":true,"systemError":"the answer could not be written as JSON"}}` + "\n")
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(body.Len()))
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes()) // the caller has left when this fails
}
