declare const engine: any
export default engine
