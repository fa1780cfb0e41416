export function lexer(text: string, options?: object): any[]
