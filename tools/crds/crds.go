// Package crds names the projects whose CustomResourceDefinitions the chart's
// objects are checked against. Nothing of them is compiled but these packages;
// the definitions are files of the modules.
package crds

import (
	_ "github.com/cert-manager/cert-manager/pkg/apis/certmanager"          // deploy/crds
	_ "github.com/prometheus-operator/prometheus-operator/pkg/versionutil" // example/prometheus-operator-crd
)
