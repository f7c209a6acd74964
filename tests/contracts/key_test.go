// Package contracts holds tests of what two halves of the project must agree on,
// byte for byte, without either importing the other.
package contracts

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/rego"

	"github.com/archkeeper/archkeeper/provider/wire"
)

const sum = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// TestKeyIsRegos: Key.String gives, byte for byte, what json.marshal of Rego
// gives, so that our clients and Gatekeeper's templates share cached answers.
func TestKeyIsRegos(t *testing.T) {
	for sentence, key := range map[string]wire.Key{
		"full":           {Image: "quay.io/a/b:1@" + sum, ImagePullSecrets: []string{"s", "t"}, Namespace: "ns", ServiceAccount: "default", V: 1},
		"empty":          {Image: "x", Namespace: "ns", V: 1},
		"hostile images": {Image: "<a>&\u2028\"\\\n\x00é\U0001f600\x7f", Namespace: "ns", V: 1},
	} {
		t.Run(sentence, func(t *testing.T) {
			secrets := make([]any, 0, len(key.ImagePullSecrets))
			for _, secret := range key.ImagePullSecrets {
				secrets = append(secrets, secret)
			}
			result, err := rego.New(
				rego.Query(`json.marshal({"v": 1, "image": input.image, "namespace": input.namespace, "serviceAccount": input.sa, "imagePullSecrets": input.secrets})`),
				rego.Input(map[string]any{"image": key.Image, "namespace": key.Namespace, "sa": key.ServiceAccount, "secrets": secrets}),
			).Eval(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got, want := key.String(), result[0].Expressions[0].Value; got != want {
				t.Errorf("got %s, Rego writes %s", got, want)
			}
			again, err := wire.ParseKey(key.String())
			if diff := cmp.Diff(key, again); err != nil || diff != "" {
				t.Errorf("read back: %v, want -, got +:\n%s", err, diff)
			}
		})
	}
}
