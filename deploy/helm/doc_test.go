// Package helm_test renders the chart and holds what comes out against what
// Kubernetes reads, field by field, and against what the chart promises.
package helm_test
