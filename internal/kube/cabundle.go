package kube

import (
	"context"
	"log/slog"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/tools/cache"
)

// FollowCABundle calls set with the caBundle of a ValidatingWebhookConfiguration,
// PEM, each time that it is another one, until ctx ends. Errors of set are logged.
func FollowCABundle(ctx context.Context, client admissionclient.ValidatingWebhookConfigurationsGetter, name string, set func([]byte) error, log *slog.Logger) {
	configurations := client.ValidatingWebhookConfigurations()
	only := fields.OneTermEqualSelector("metadata.name", name).String()
	last := ""
	changed := func(object any) {
		configuration, ok := object.(*admissionv1.ValidatingWebhookConfiguration)
		if !ok || len(configuration.Webhooks) == 0 {
			return
		}
		bundle := configuration.Webhooks[0].ClientConfig.CABundle
		if len(bundle) == 0 || string(bundle) == last {
			return
		}
		last = string(bundle)
		if err := set(bundle); err != nil {
			log.Error("the caBundle cannot be used", "validatingwebhookconfiguration", name, "error", err)
			return
		}
		log.Info("following a caBundle", "validatingwebhookconfiguration", name)
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = only
				return configurations.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = only
				return configurations.Watch(ctx, o)
			},
		}, client),
		ObjectType: &admissionv1.ValidatingWebhookConfiguration{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: changed, UpdateFunc: func(_, object any) { changed(object) },
		},
	})
	controller.RunWithContext(ctx)
}
