package cli

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"strings"
)

// tracesWanted reads the standard variables of OpenTelemetry
// (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/).
// Unlike the standard's default, nothing is exported unless an exporter or an
// endpoint is named. The warning says why what is asked for cannot be done; it
// repeats no value that may hold a credential.
func tracesWanted() (wanted bool, warning string) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false, ""
	}
	endpointVariable := "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	if os.Getenv(endpointVariable) == "" {
		endpointVariable = "OTEL_EXPORTER_OTLP_ENDPOINT"
	}
	endpoint := strings.TrimSpace(os.Getenv(endpointVariable))
	switch exporter := strings.TrimSpace(os.Getenv("OTEL_TRACES_EXPORTER")); {
	case exporter == "none", exporter == "" && endpoint == "":
		return false, ""
	case exporter != "" && exporter != "otlp":
		return false, fmt.Sprintf("OTEL_TRACES_EXPORTER is %q; drainer knows otlp and none", exporter)
	}
	protocol := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf")
	if protocol != "http/protobuf" && protocol != "http/json" {
		return false, fmt.Sprintf("OTEL_EXPORTER_OTLP_PROTOCOL is %q; drainer speaks http/protobuf and http/json, which collectors listen for on port 4318", protocol)
	}
	if endpoint != "" && !isHTTP(endpoint) {
		return false, endpointVariable + " is no URL of the form http://host:4318"
	}
	return true, ""
}

func isHTTP(endpoint string) bool {
	parsed, err := url.Parse(endpoint)
	return err == nil && (parsed.Scheme == "http" || parsed.Scheme == "https") && parsed.Host != ""
}
