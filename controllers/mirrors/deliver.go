package mirrors

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/archkeeper/archkeeper/provider/mirrors"
)

// disruptionPolicy is where the machine-config operator says what it does when
// a file changes.
func disruptionPolicy() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "operator.openshift.io", Version: "v1", Resource: "machineconfigurations"}
}

// deliver brings the plan to the MachineConfigs, when that is asked for. It
// tells which change is held because it does more to nodes than is allowed.
func (c *Controller) deliver(ctx context.Context) (held string, err error) {
	if c.plan.Delivery != mirrors.DeliveryMachineConfig || c.plan.Data == nil {
		return "", nil
	}
	if !c.operator {
		return "", errors.New("delivery by MachineConfig is asked for, and the cluster has no machine-config operator")
	}
	rule, err := c.rule(ctx)
	if err != nil {
		return "", err
	}
	var helds []string
	var failures []error
	for _, pool := range c.Pools {
		text, err := c.deliverTo(ctx, pool, rule)
		if err != nil {
			failures = append(failures, err)
		}
		if text != "" {
			helds = append(helds, text)
		}
	}
	return strings.Join(helds, "; "), errors.Join(failures...)
}

// deliverTo brings one pool to the plan. Equal files mean no write, whatever
// else of the MachineConfig would be written differently today.
func (c *Controller) deliverTo(ctx context.Context, pool string, rule mirrors.Rule) (held string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	name := mirrors.MachineConfigName(pool)
	client := c.Dynamic.Resource(machineConfigs)
	current, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("read MachineConfig %s: %w", name, err)
	}
	exists := err == nil
	conf, policy := []byte(c.plan.Data[mirrors.KeyConf]), []byte(c.plan.Data[mirrors.KeyPolicy])
	wanted := len(conf)+len(policy) > 0
	var oldConf, oldPolicy []byte
	if exists {
		oldConf, oldPolicy = ignitionFile(current, mirrors.DropInPath), ignitionFile(current, mirrors.PolicyPath)
	}
	if exists == wanted && bytes.Equal(oldConf, conf) && bytes.Equal(oldPolicy, policy) {
		delete(c.heldFor, pool)
		return "", nil
	}
	before, err := mirrors.ParseRegistriesConf(mirrors.NamedFile{Name: name, Data: oldConf})
	if err != nil {
		before = nil // whatever it was, it is replaced
	}
	class := mirrors.Classify(before, c.plan.Result.Config, bytes.Equal(oldConf, conf), rule)
	if !bytes.Equal(oldPolicy, policy) {
		// The operator has a rule of its own for policy.json: reload.
		class = max(class, mirrors.DisruptionReload)
	}
	change := fmt.Sprintf("MachineConfig %s: the change makes the nodes of pool %s %s", name, pool, class)
	if c.status.Disruption != class.String() {
		c.status.Disruption = class.String()
		c.Log.Info("a MachineConfig is to change", "name", name, "disruption", class.String(), "allowed", c.MaxDisruption.String())
	}
	if class > c.MaxDisruption {
		if what := change + " " + c.plan.Data[mirrors.KeySHA256]; c.heldFor[pool] != what { // once, however long it waits
			c.heldFor[pool] = what
			c.metrics.delivered.WithLabelValues(class.String(), "held").Inc()
		}
		return change + ", and no more than " + c.MaxDisruption.String() + " is allowed", nil
	}
	delete(c.heldFor, pool)
	if err := c.apply(ctx, pool, current, exists, wanted, conf, policy); err != nil {
		return "", err
	}
	c.metrics.delivered.WithLabelValues(class.String(), "written").Inc()
	c.Recorder.Event(&corev1.ObjectReference{APIVersion: machineGV.String(), Kind: "MachineConfig", Name: name}, corev1.EventTypeNormal, "Changed", change)
	return "", nil
}

func (c *Controller) apply(ctx context.Context, pool string, current *unstructured.Unstructured, exists, wanted bool, conf, policy []byte) error {
	client, name := c.Dynamic.Resource(machineConfigs), mirrors.MachineConfigName(pool)
	if !wanted {
		seen := current.GetResourceVersion()
		if err := client.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &seen}}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete MachineConfig %s: %w", name, err)
		}
		return nil
	}
	if len(policy) == 0 {
		policy = nil
	}
	text, err := mirrors.MachineConfig(pool, conf, policy)
	if err != nil {
		return fmt.Errorf("render MachineConfig %s: %w", name, err)
	}
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &object.Object); err != nil {
		return fmt.Errorf("render MachineConfig %s: %w", name, err)
	}
	if exists {
		object.SetResourceVersion(current.GetResourceVersion())
		_, err = client.Update(ctx, object, metav1.UpdateOptions{FieldManager: FieldManager})
	} else {
		_, err = client.Create(ctx, object, metav1.CreateOptions{FieldManager: FieldManager})
	}
	if err != nil {
		return fmt.Errorf("write MachineConfig %s: %w", name, err)
	}
	return nil
}

// ignitionFile gives the contents of a file of a MachineConfig; nil when it
// has none, or none that can be read.
func ignitionFile(object *unstructured.Unstructured, path string) []byte {
	files, _, err := unstructured.NestedSlice(object.Object, "spec", "config", "storage", "files")
	if err != nil {
		return nil
	}
	for _, f := range files {
		file, ok := f.(map[string]any)
		if !ok || file["path"] != path {
			continue
		}
		source, _, err := unstructured.NestedString(file, "contents", "source")
		if err != nil {
			return nil
		}
		head, body, ok := strings.Cut(strings.TrimPrefix(source, "data:"), ",")
		if !ok {
			return nil
		}
		if strings.HasSuffix(head, ";base64") {
			data, err := base64.StdEncoding.DecodeString(body)
			if err != nil {
				return nil
			}
			return data
		}
		text, err := url.PathUnescape(body)
		if err != nil {
			return nil
		}
		return []byte(text)
	}
	return nil
}

// rule reads what the cluster's node disruption policy says about the drop-in.
func (c *Controller) rule(ctx context.Context) (mirrors.Rule, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	object, err := c.Dynamic.Resource(disruptionPolicy()).Get(ctx, imageName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return mirrors.RuleUnknown, nil
	}
	if err != nil {
		return mirrors.RuleUnknown, fmt.Errorf("read the node disruption policy: %w", err)
	}
	files, _, err := unstructured.NestedSlice(object.Object, "status", "nodeDisruptionPolicyStatus", "clusterPolicies", "files")
	if err != nil {
		return mirrors.RuleUnknown, nil // a policy of another shape has no rule for us
	}
	for _, f := range files {
		file, ok := f.(map[string]any)
		if !ok || file["path"] != mirrors.DropInPath {
			continue
		}
		actions, ok := file["actions"].([]any)
		if !ok || len(actions) == 0 {
			return mirrors.RuleUnknown, nil
		}
		rule := mirrors.RuleReload
		for _, a := range actions {
			action, _ := a.(map[string]any)
			switch action["type"] {
			case "None", "Reload", "Restart", "DaemonReload":
			case "Special":
				rule = max(rule, mirrors.RuleSpecial)
			case "Drain":
				rule = mirrors.RuleDrain
			default: // Reboot, and what is not known here
				return mirrors.RuleUnknown, nil
			}
		}
		return rule, nil
	}
	return mirrors.RuleUnknown, nil
}
