// Package providerblock writes the configuration of a provider from what its
// OpenAPI document declares.
//
//	manifest.Document ──From──▶ tools that can be sent as declared ──YAML──▶ drainer.yaml
//	                     └────▶ operations that cannot, each with the reason
//
// Nothing is guessed: an operation with a violation, or with something that
// the HTTP adapter cannot send, is left out, and so is whatever needs it.
package providerblock
