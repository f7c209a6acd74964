package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"

	"github.com/open-policy-agent/frameworks/constraint/pkg/externaldata"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/types"

	"github.com/archkeeper/archkeeper/policies"
	"github.com/archkeeper/archkeeper/provider/server"
)

// maxResponse bounds what is read of one answer, in bytes.
const maxResponse = 16 << 20

// gatekeeper is the part of Gatekeeper that the demonstration needs: it
// evaluates a constraint and binds external_data to the provider.
type gatekeeper struct {
	url    string // of the provider
	client *http.Client
}

// post sends a ProviderRequest and gives status and body.
func (g gatekeeper) post(ctx context.Context, path string, keys []string) (int, []byte, error) {
	body, err := json.Marshal(externaldata.NewProviderRequest(keys))
	if err != nil {
		return 0, nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := g.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	return response.StatusCode, text, err
}

// ask sends a ProviderRequest and reads the answer as Gatekeeper does.
func (g gatekeeper) ask(ctx context.Context, path string, keys []string) (int, *externaldata.ProviderResponse, error) {
	status, text, err := g.post(ctx, path, keys)
	if err != nil {
		return 0, nil, err
	}
	var response externaldata.ProviderResponse
	if err := json.Unmarshal(text, &response); err != nil {
		return status, nil, fmt.Errorf("the provider's answer is no JSON: %w", err)
	}
	return status, &response, nil
}

// The names of the Provider objects, as the constraints' defaults are.
func path(providerName string) (string, error) {
	switch providerName {
	case "archkeeper":
		return server.PathPublic, nil
	case "archkeeper-namespaced":
		return server.PathNamespaced, nil
	}
	return "", fmt.Errorf("there is no provider %q", providerName)
}

// externalData is the builtin that Gatekeeper gives to a constraint's Rego.
func (g gatekeeper) externalData(bctx rego.BuiltinContext, term *ast.Term) (*ast.Term, error) {
	var request externaldata.RegoRequest
	if err := ast.As(term.Value, &request); err != nil {
		return nil, err
	}
	to, err := path(request.ProviderName)
	if err != nil {
		return externaldata.HandleError(http.StatusBadRequest, err)
	}
	status, response, err := g.ask(bctx.Context, to, request.Keys)
	if err != nil {
		return externaldata.HandleError(http.StatusInternalServerError, err)
	}
	return externaldata.PrepareRegoResponse(externaldata.NewRegoResponse(status, response))
}

// verdict gives the messages of a constraint's violations by a pod that is
// being created, sorted; none allows the pod.
func (g gatekeeper) verdict(ctx context.Context, constraint policies.Constraint, pod, parameters map[string]any) ([]string, error) {
	options := []func(*rego.Rego){
		rego.Query(constraint.Query),
		rego.StrictBuiltinErrors(true),
		rego.Input(map[string]any{
			"review": map[string]any{
				"operation": "CREATE",
				"kind":      map[string]any{"group": "", "version": "v1", "kind": "Pod"},
				"object":    pod,
			},
			"parameters": parameters,
		}),
		rego.Function1(&rego.Function{
			Name: "external_data", Decl: types.NewFunction(types.Args(types.A), types.A),
			Nondeterministic: true,
		}, g.externalData),
	}
	for _, name := range slices.Sorted(maps.Keys(constraint.Modules)) {
		options = append(options, rego.Module(name, constraint.Modules[name]))
	}
	results, err := rego.New(options...).Eval(ctx)
	if err != nil {
		return nil, fmt.Errorf("evaluating %s: %w", constraint.Name, err)
	}
	var messages []string
	for _, result := range results {
		for _, expression := range result.Expressions {
			violations, _ := expression.Value.([]any)
			for _, violation := range violations {
				fields, _ := violation.(map[string]any)
				message, _ := fields["msg"].(string)
				messages = append(messages, message)
			}
		}
	}
	slices.Sort(messages)
	return messages, nil
}
