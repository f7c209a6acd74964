package registrytest

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Status answers with a status and headers, given as "Name: value".
func Status(status int, headers ...string) Behaviour {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			w.Header().Set(name, value)
		}
		Error(w, status, "TEST")
	}
}

// Stall never answers.
func (r *Registry) Stall() Behaviour {
	return func(_ http.ResponseWriter, q *http.Request, _ http.Handler) { r.stall(q) }
}

func (r *Registry) stall(q *http.Request) {
	select {
	case <-q.Context().Done():
	case <-r.stop:
	}
}

// StallMidBody sends headers and the half of the body, and then nothing.
func (r *Registry) StallMidBody() Behaviour {
	return func(w http.ResponseWriter, q *http.Request, next http.Handler) {
		got := capture(q, next)
		got.headers(w)
		w.Header().Set("Content-Length", fmt.Sprint(got.body.Len()))
		w.WriteHeader(got.status)
		_, _ = w.Write(got.body.Bytes()[:got.body.Len()/2])
		_ = http.NewResponseController(w).Flush()
		r.stall(q)
	}
}

// Trickle sends headers, so many bytes of white space, and then one more each
// tenth of a second.
func (r *Registry) Trickle(contentType string, at int) Behaviour {
	return func(w http.ResponseWriter, q *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, strings.Repeat(" ", at))
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			if err := http.NewResponseController(w).Flush(); err != nil {
				return
			}
			select {
			case <-ticker.C:
			case <-q.Context().Done():
				return
			case <-r.stop:
				return
			}
			_, _ = io.WriteString(w, " ")
		}
	}
}

// Endless sends headers and a body without end, of the given filling.
func (r *Registry) Endless(contentType, filling string) Behaviour {
	return func(w http.ResponseWriter, q *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(http.StatusOK)
		chunk := []byte(strings.Repeat(filling, 32<<10/len(filling)))
		for q.Context().Err() == nil {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}
}

// Cut sends the half of the body and closes the connection. The header tells
// the whole length.
func Cut(w http.ResponseWriter, q *http.Request, next http.Handler) {
	got := capture(q, next)
	raw(w, got, got.body.Len(), got.body.Bytes()[:got.body.Len()/2])
}

// CutChunked is Cut with a chunked body, which has no length.
func CutChunked(w http.ResponseWriter, q *http.Request, next http.Handler) {
	got := capture(q, next)
	half := got.body.Bytes()[:got.body.Len()/2]
	var chunk bytes.Buffer
	fmt.Fprintf(&chunk, "%x\r\n%s\r\n", len(half), half)
	raw(w, got, -1, chunk.Bytes())
}

// TooLong tells a length that is longer than the body.
func TooLong(w http.ResponseWriter, q *http.Request, next http.Handler) {
	got := capture(q, next)
	raw(w, got, got.body.Len()+100, got.body.Bytes())
}

// TooShort tells a length that is shorter than the body, and no digest.
func TooShort(w http.ResponseWriter, q *http.Request, next http.Handler) {
	got := capture(q, next)
	got.header.Del("Docker-Content-Digest")
	raw(w, got, got.body.Len()-40, got.body.Bytes())
}

// raw writes an answer to the connection and closes it. A negative length is a
// chunked body.
func raw(w http.ResponseWriter, got *captured, length int, body []byte) {
	connection, buffer, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // HTTP/2: no test uses it here
	}
	defer connection.Close()
	fmt.Fprintf(buffer, "HTTP/1.1 %d %s\r\n", got.status, http.StatusText(got.status))
	if length >= 0 {
		fmt.Fprintf(buffer, "Content-Length: %d\r\n", length)
	} else {
		fmt.Fprint(buffer, "Transfer-Encoding: chunked\r\n")
	}
	for _, name := range []string{"Content-Type", "Docker-Content-Digest"} {
		if value := got.header.Get(name); value != "" {
			fmt.Fprintf(buffer, "%s: %s\r\n", name, value)
		}
	}
	fmt.Fprint(buffer, "\r\n")
	_, _ = buffer.Write(body)
	_ = buffer.Flush()
}

// Gzip compresses the body, asked or not.
func Gzip(w http.ResponseWriter, q *http.Request, next http.Handler) {
	got := capture(q, next)
	got.headers(w)
	w.Header().Set("Content-Encoding", "gzip")
	w.WriteHeader(got.status)
	zip := gzip.NewWriter(w)
	_, _ = zip.Write(got.body.Bytes())
	_ = zip.Close()
}

// Bomb gives a gzip behaviour whose body unpacks to size bytes of white space.
func Bomb(contentType string, size int64) Behaviour {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(http.StatusOK)
		zip, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
		if err != nil {
			return
		}
		chunk := []byte(strings.Repeat(" ", 64<<10))
		for sent := int64(0); sent < size; sent += int64(len(chunk)) {
			if _, err := zip.Write(chunk); err != nil {
				return
			}
		}
		_ = zip.Close()
	}
}

// WithHeader sets a header in what the registry answers; an empty value
// removes it.
func WithHeader(name, value string) Behaviour {
	return func(w http.ResponseWriter, q *http.Request, next http.Handler) {
		got := capture(q, next)
		got.headers(w)
		if value == "" {
			w.Header()[http.CanonicalHeaderKey(name)] = nil
		} else {
			w.Header().Set(name, value)
		}
		if q.Method == http.MethodHead {
			w.WriteHeader(got.status)
			return
		}
		if name != "Content-Length" {
			w.Header().Set("Content-Length", fmt.Sprint(got.body.Len()))
		}
		w.WriteHeader(got.status)
		_, _ = io.Copy(w, &got.body)
	}
}

// Body answers 200 with a body of any kind.
func Body(contentType, body string) Behaviour {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, body)
	}
}

// RedirectTo redirects with a status to prefix and the path that was asked for.
func RedirectTo(status int, prefix string) Behaviour {
	return func(w http.ResponseWriter, q *http.Request, _ http.Handler) {
		w.Header().Set("Location", prefix+q.URL.Path)
		w.WriteHeader(status)
	}
}

// captured is an answer that was not sent.
type captured struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func capture(q *http.Request, next http.Handler) *captured {
	got := &captured{status: http.StatusOK, header: http.Header{}}
	next.ServeHTTP(got, q)
	return got
}

// Header of the answer.
func (c *captured) Header() http.Header { return c.header }

// WriteHeader keeps the status.
func (c *captured) WriteHeader(status int) { c.status = status }

// Write keeps the body.
func (c *captured) Write(b []byte) (int, error) { return c.body.Write(b) }

func (c *captured) headers(w http.ResponseWriter) {
	for name, values := range c.header {
		if name != "Content-Length" {
			w.Header()[name] = values
		}
	}
}
