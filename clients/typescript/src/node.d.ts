// The part of Node that this package uses, so that it does not depend on @types/node.
declare module "node:crypto" {
  export function createHash(algorithm: string): { update(data: string, encoding: "utf8"): { digest(encoding: "hex"): string } };
}
