package wire

import (
	"encoding/json"
	"unicode/utf8"

	"github.com/archkeeper/archkeeper/provider"
)

const (
	// SystemErrorVersion is the only value of the field v.
	SystemErrorVersion = 1
	// MaxSystemError is the greatest length of a systemError in bytes.
	MaxSystemError = 16 << 10
	// shortMessage is the length in bytes to which messages are cut when
	// everything together is too long.
	shortMessage = 120
)

// SystemError is what the provider's systemError says as JSON: the keys that
// have no answer now and may have one later.
type SystemError struct {
	V            int            `json:"v"`
	Undetermined []Undetermined `json:"undetermined"`
}

// Undetermined is one key without an answer.
type Undetermined struct {
	Key     string         `json:"key"`
	Class   provider.Class `json:"class"`
	Message string         `json:"message"`
}

// EncodeSystemError gives the systemError for keys without an answer, valid
// JSON of at most MaxSystemError bytes; the empty string when there are none.
//
// When they do not fit, messages are cut first, then left out, and then the
// keys that still do not fit are left out, those that came first being kept. A
// reader never depends on it: a key that is in neither the items nor here is
// undetermined as well.
func EncodeSystemError(undetermined []Undetermined) string {
	if len(undetermined) == 0 {
		return ""
	}
	for _, limit := range []int{MaxSystemError, shortMessage, 0} {
		if text, complete := encode(undetermined, limit, limit == 0); complete || limit == 0 {
			return text
		}
	}
	return "" // not reached: the last limit always returns
}

// encode writes as many entries as fit, with messages of at most limit bytes.
// Unless partial, it gives up at the first entry that does not fit.
func encode(undetermined []Undetermined, limit int, partial bool) (string, bool) {
	text := []byte(`{"v":1,"undetermined":[`)
	const end = `]}`
	complete, first := true, true
	for _, entry := range undetermined {
		entry.Message = cut(entry.Message, limit)
		piece, err := json.Marshal(entry)
		if err != nil || len(text)+1+len(piece)+len(end) > MaxSystemError {
			complete = false
			if !partial {
				return "", false
			}
			continue
		}
		if !first {
			text = append(text, ',')
		}
		first = false
		text = append(text, piece...)
	}
	return string(append(text, end...)), complete
}

// cut shortens text to at most limit bytes, between characters.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}

// ParseSystemError reads a systemError of ours. Another text, or another
// version, is a *provider.Error of ClassInternal that quotes it. The empty text
// is the zero SystemError.
func ParseSystemError(text string) (SystemError, error) {
	if text == "" {
		return SystemError{}, nil
	}
	var result SystemError
	if err := json.Unmarshal([]byte(text), &result); err != nil || result.V != SystemErrorVersion {
		return SystemError{}, provider.Errorf(provider.ClassInternal, "the provider failed: %s", provider.Quote(text))
	}
	return result, nil
}

// Error gives what an entry says. An unknown class is ClassInternal.
func (u Undetermined) Error() *provider.Error {
	class := u.Class
	known := false
	for _, c := range provider.Classes() {
		known = known || c == class
	}
	if !known {
		class = provider.ClassInternal
	}
	return &provider.Error{Class: class, Message: u.Message}
}
