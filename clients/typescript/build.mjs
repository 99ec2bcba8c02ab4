// Builds dist/ as ES modules and as CommonJS. Usage: node build.mjs [PATH OF tsc]
import { execFileSync } from "node:child_process";
import { rmSync, writeFileSync } from "node:fs";

const [tsc = "tsc"] = process.argv.slice(2);
rmSync("dist", { recursive: true, force: true });
for (const [folder, module] of [["esm", "ES2020"], ["cjs", "CommonJS"]]) {
  const args = ["--project", ".", "--module", module, "--outDir", `dist/${folder}`];
  tsc.endsWith("tsc") && tsc.includes("/") ? execFileSync(process.execPath, [tsc, ...args], { stdio: "inherit" }) : execFileSync(tsc, args, { stdio: "inherit" });
}
writeFileSync("dist/cjs/package.json", '{"type": "commonjs"}\n');
