package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/open-policy-agent/frameworks/constraint/pkg/externaldata"

	"github.com/archkeeper/archkeeper/provider"
)

// Limits of one request.
const (
	// MaxBodySize of a request, in bytes.
	MaxBodySize = 1 << 20
	// MaxKeys of a request, counted as they are sent.
	MaxKeys = 512
)

// The protocol's versions, which differ in nothing that we read or write. The
// answer is of the request's version.
const (
	apiVersionBeta  = "externaldata.gatekeeper.sh/v1beta1"
	apiVersionAlpha = "externaldata.gatekeeper.sh/v1alpha1"
)

// fault is a request that cannot be answered, with its HTTP status. Its text is
// for whoever sent it.
type fault struct {
	status int
	text   string
}

func faultf(status int, format string, args ...any) *fault {
	return &fault{status, fmt.Sprintf(format, args...)}
}

// readBody reads a JSON body. What is sent beyond the limit is read and thrown
// away, up to four times the limit, so that a client that does not listen
// while it sends still sees the answer.
func readBody(r *http.Request) ([]byte, *fault) {
	if contentType := r.Header.Get("Content-Type"); contentType != "" {
		kind, parameters, err := mime.ParseMediaType(contentType)
		if err != nil || kind != "application/json" {
			return nil, faultf(http.StatusUnsupportedMediaType, "the Content-Type is %s, not application/json", provider.Quote(contentType))
		}
		if charset := parameters["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
			return nil, faultf(http.StatusUnsupportedMediaType, "the charset is %s, not utf-8", provider.Quote(charset))
		}
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, faultf(http.StatusUnsupportedMediaType, "the Content-Encoding is %s; send the body as it is", provider.Quote(encoding))
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, MaxBodySize+1))
	if err != nil {
		return nil, faultf(http.StatusBadRequest, "the body could not be read to its end")
	}
	if len(body) > MaxBodySize {
		_, _ = io.CopyN(io.Discard, r.Body, 4*MaxBodySize)
		return nil, faultf(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", MaxBodySize)
	}
	return body, nil
}

// parseRequest reads a ProviderRequest. version is the one to answer with,
// also beside a fault. Fields that are not known are passed over: Gatekeeper
// may come to send more. No keys at all is a request with an empty answer, as
// Gatekeeper's types leave an empty list out.
func parseRequest(body []byte) (keys []string, version string, bad *fault) {
	version = apiVersionBeta
	// JSON text is UTF-8 (RFC 8259, section 8.1). encoding/json would put a
	// replacement character into a key and we would echo another key.
	if !utf8.Valid(body) {
		return nil, version, faultf(http.StatusBadRequest, "the body is not UTF-8")
	}
	var request externaldata.ProviderRequest
	if err := json.Unmarshal(body, &request); err != nil {
		return nil, version, faultf(http.StatusBadRequest, "the body is not a ProviderRequest: %s", jsonFault(err))
	}
	switch request.APIVersion {
	case apiVersionBeta, apiVersionAlpha:
		version = request.APIVersion
	default:
		return nil, version, faultf(http.StatusBadRequest, "apiVersion is %s, not %s", provider.Quote(request.APIVersion), apiVersionBeta)
	}
	if request.Kind != externaldata.ProviderRequestKind {
		return nil, version, faultf(http.StatusBadRequest, "kind is %s, not %s", provider.Quote(string(request.Kind)), externaldata.ProviderRequestKind)
	}
	if n := len(request.Request.Keys); n > MaxKeys {
		return nil, version, faultf(http.StatusRequestEntityTooLarge, "%d keys are more than %d", n, MaxKeys)
	}
	return request.Request.Keys, version, nil
}

// jsonFault says what is wrong with a text without repeating it.
func jsonFault(err error) string {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Sprintf("%s at byte %d", syntax, syntax.Offset)
	}
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return fmt.Sprintf("%s is a JSON %s", kind.Field, kind.Value)
	}
	return "it is not JSON"
}

// distinct gives the keys without repetition, in the order of their first
// appearance. A key is answered once however often it is sent.
func distinct(keys []string) []string {
	if len(keys) < 2 {
		return keys
	}
	seen := make(map[string]struct{}, len(keys))
	first := make([]string, 0, len(keys))
	for _, key := range keys {
		if _, ok := seen[key]; ok {
			continue
		}
		seen[key] = struct{}{}
		first = append(first, key)
	}
	return first
}
