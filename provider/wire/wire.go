// Package wire holds the JSON that others script against: the object of
// `archkeeper inspect`, the provider's item value, structured keys and the
// provider's systemError. Fields stand in the order of the contract.
//
// A consumer may rely on: fields are added, never renamed or given another
// meaning; an absent field is left out.
package wire

import (
	"encoding/json"

	"github.com/archkeeper/archkeeper/provider"
)

// Image is the JSON object that inspect, explain and GET /v1/images give for
// one image.
type Image struct {
	// Image as it was given.
	Image string `json:"image"`
	// Reference is canonical, with registry and tag or digest.
	Reference string `json:"reference,omitempty"`
	// Digest is algorithm:hex.
	Digest string `json:"digest,omitempty"`
	// Kind is index, manifest, artifact or schema1.
	Kind provider.Kind `json:"kind,omitempty"`
	// Platforms, sorted; left out beside an error and for content only.
	Platforms []string `json:"platforms,omitempty"`
	// Architectures are values of kubernetes.io/arch on which the image runs
	// as linux. Empty but there when it runs on none; nil, and left out,
	// beside an error: what is not known must not look like "runs nowhere".
	Architectures []string `json:"architectures,omitzero"`
	// ContentOnly marks data that places no constraint.
	ContentOnly bool `json:"contentOnly,omitempty"`
	// Mirror is the location that answered, when it was not the reference's own.
	Mirror string `json:"mirror,omitempty"`
	// Error says why the platforms are not known.
	Error *ImageError `json:"error,omitempty"`
}

// ImageError is the error object of an Image.
type ImageError struct {
	Class   provider.Class `json:"class"`
	Message string         `json:"message"`
	// Retryable tells whether asking again may give another answer.
	Retryable bool `json:"retryable"`
	// HTTPStatus of the registry's last word; left out when there was none.
	HTTPStatus int `json:"httpStatus,omitempty"`
}

// FromAnswer gives the object for an answer.
func FromAnswer(answer provider.Answer) Image {
	image := Image{Image: answer.Image, Reference: answer.Reference, Digest: answer.Digest, Kind: answer.Kind, Mirror: answer.Mirror}
	if answer.Err != nil {
		image.Error = &ImageError{
			Class: answer.Err.Class, Message: answer.Err.Message,
			Retryable: answer.Err.Class.Retryable(), HTTPStatus: answer.Err.HTTPStatus,
		}
		return image
	}
	image.ContentOnly = answer.ContentOnly
	image.Architectures = []string{}
	if !answer.ContentOnly {
		image.Platforms = answer.Platforms
		image.Architectures = append(image.Architectures, answer.Architectures...)
	}
	return image
}

// Answer gives back the answer that an object stands for. Times, warnings and
// the source of the credentials do not travel.
func (i Image) Answer() provider.Answer {
	answer := provider.Answer{Image: i.Image, Reference: i.Reference, Digest: i.Digest, Kind: i.Kind, Mirror: i.Mirror}
	if i.Error != nil {
		answer.Err = &provider.Error{Class: i.Error.Class, Message: i.Error.Message, HTTPStatus: i.Error.HTTPStatus}
		return answer
	}
	answer.Platforms, answer.Architectures, answer.ContentOnly = i.Platforms, i.Architectures, i.ContentOnly
	return answer
}

// Value is the value of a good item of the provider's response.
type Value struct {
	Architectures []string      `json:"architectures"` // never null
	Platforms     []string      `json:"platforms"`     // never null
	Digest        string        `json:"digest"`
	Kind          provider.Kind `json:"kind"`
	ContentOnly   bool          `json:"contentOnly,omitempty"`
}

// ValueFromAnswer gives the value for a known answer. It must not be called
// with an answer that has an Err: that belongs into an item error or into the
// systemError; such an answer gives a value without any platform.
func ValueFromAnswer(answer provider.Answer) Value {
	value := Value{Architectures: []string{}, Platforms: []string{}, Digest: answer.Digest, Kind: answer.Kind}
	if answer.Err != nil {
		return value
	}
	value.ContentOnly = answer.ContentOnly
	if answer.ContentOnly {
		return value
	}
	if len(answer.Architectures) > 0 {
		value.Architectures = answer.Architectures // shared, as answers are
	}
	if len(answer.Platforms) > 0 {
		value.Platforms = answer.Platforms
	}
	return value
}

// ParseValue reads an item's value, as an answer for image. A value without
// platforms that is not content only is an error: it would read as "runs
// nowhere". Errors are *provider.Error of ClassInternal: the value is our own.
func ParseValue(image string, data []byte) (provider.Answer, error) {
	var value Value
	if err := json.Unmarshal(data, &value); err != nil {
		return provider.Answer{}, provider.Errorf(provider.ClassInternal, "the provider's value for %s cannot be read: %w", provider.Quote(image), err)
	}
	if len(value.Platforms) == 0 && !value.ContentOnly {
		return provider.Answer{}, provider.Errorf(provider.ClassInternal, "the provider's value for %s names no platform", provider.Quote(image))
	}
	return provider.Answer{
		Image: image, Digest: value.Digest, Kind: value.Kind, ContentOnly: value.ContentOnly,
		Platforms: value.Platforms, Architectures: value.Architectures,
	}, nil
}

// ParseItemError reads the text of an item error, "<class>: <message>". A text
// of another form is ClassInternal and kept as the message.
func ParseItemError(text string) *provider.Error {
	for _, class := range provider.Classes() {
		prefix := string(class) + ": "
		if len(text) > len(prefix) && text[:len(prefix)] == prefix {
			return &provider.Error{Class: class, Message: text[len(prefix):]}
		}
	}
	return &provider.Error{Class: provider.ClassInternal, Message: "the provider's error " + provider.Quote(text) + " names no class"}
}
