// What is used of Node. Its own types are no dependency of this package.
declare module "node:crypto" {
  export function createHash(algorithm: string): { update(data: string, encoding: "utf8"): { digest(encoding: "hex"): string } };
}
