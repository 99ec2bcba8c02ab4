package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

func newTenants(options *options) *cobra.Command {
	command := group("tenants", "List tenants")
	command.AddCommand(&cobra.Command{
		Use:   "list",
		Short: "List tenants: their weights and limits, and what they use of them now",
		Long: fmt.Sprintf(`list shows each row of outbox.tenant: its weight, its limits and what it uses of them now.
Of each tenant it looks at %d queued rows at most: DUE and BYTES with a + are at least that much.
IN FLIGHT is that of all providers together; its limit is for each.`, operator.TenantLook),
		Example: `  drainer tenants list
  drainer tenants list -o json | jq '.[] | select(.max_due != null and .due >= .max_due)'`,
		Args: cobra.NoArgs,
		RunE: options.onOutbox(func(command *cobra.Command, console *operator.Console, _ []string) error {
			const page = 100
			all, after := []operator.Tenant{}, ""
			for {
				some, err := console.Tenants(command.Context(), after, page)
				if err != nil {
					return err
				}
				if all = append(all, some...); len(some) < page {
					return options.print(command, all, tenantTable(all))
				}
				after = some[page-1].Name
			}
		}),
	})
	return command
}

func tenantTable(tenants []operator.Tenant) table {
	heading := []string{"TENANT", "WEIGHT", "DUE", "MAX", "BYTES", "MAX", "IN FLIGHT", "MAX", "MAX A SECOND", "ROLE", "NAMESPACE"}
	atLeast := func(count int, stopped bool) string {
		if stopped {
			return fmt.Sprintf("%d+", count)
		}
		return fmt.Sprint(count)
	}
	return tableOf(heading, tenants, func(t operator.Tenant) []any {
		return []any{
			t.Name, t.Weight, atLeast(t.Due, t.Due >= operator.TenantLook), t.MaxDue, atLeast(t.Bytes, t.Queued >= operator.TenantLook), t.MaxBytes,
			atLeast(t.InFlight, t.InFlightBounded), t.MaxInFlight, t.MaxRate, t.Role, t.Namespace,
		}
	})
}
