package pgpool

import "github.com/jackc/pgx/v5/pgconn"

const readOnlyTransaction = "25006"

// leaveReadOnly gives up a connection to a server that refuses to write, such as
// a primary that came back as a standby. Whoever takes writes by then is found
// by connecting anew, and never by asking the same server again.
func leaveReadOnly(config *pgconn.Config) {
	keeps := config.OnPgError
	config.OnPgError = func(conn *pgconn.PgConn, refusal *pgconn.PgError) bool {
		return refusal.Code != readOnlyTransaction && keeps(conn, refusal)
	}
}
